// SPDX-License-Identifier: BSD-3-Clause
#include "wire.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

namespace peerbuf::emulated
{

namespace
{

/* More than any message carries, so that too many are seen and not cut off. */
constexpr size_t maxFds = 8;

constexpr int scratchSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr int identitySeals = scratchSeals | F_SEAL_WRITE;

} // namespace

Message makeMessage(Kind kind, Op op, uint64_t serial)
{
	Message m{};
	m.magic = messageMagic;
	m.version = protocolVersion;
	m.op = static_cast<uint16_t>(op);
	m.kind = static_cast<uint16_t>(kind);
	m.size = sizeof(Message);
	m.serial = serial;
	return m;
}

const char *headerProblem(const Message &m)
{
	if (m.magic != messageMagic)
		return "wrong magic";
	if (m.version != protocolVersion)
		return "wrong protocol version";
	if (m.size != sizeof(Message))
		return "wrong size in the header";
	if (m.reserved || m.reserved2)
		return "reserved fields are not 0";
	return nullptr;
}

const char *opName(uint16_t op)
{
	static constexpr const char *names[] = {
		"",	   "hello",	 "offer",	  "alloc", "get",   "free",
		"layout",  "attach",	 "detach",	  "pin",   "unpin", "map",
		"unmap",   "export_fd",	 "release_fd",	  "read",  "write", "revoke",
		"restore", "remove",	 "fault",	  "stats", "move",  "move_status",
		"pool",	   "set_limits", "tenant_status", "ack"};
	if (op >= 1 && op < std::size(names))
		return names[op];
	if (op == static_cast<uint16_t>(Op::Invalidate))
		return "invalidate";
	if (op == static_cast<uint16_t>(Op::Placed))
		return "placed";
	if (op == static_cast<uint16_t>(Op::Moved))
		return "moved";
	return "unknown";
}

int sendMessage(int socket, const Message &message, int fd)
{
	struct iovec iov = {const_cast<Message *>(&message), sizeof(message)};
	alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
	struct msghdr hdr = {};
	hdr.msg_iov = &iov;
	hdr.msg_iovlen = 1;
	if (fd >= 0) {
		hdr.msg_control = control;
		hdr.msg_controllen = sizeof(control);
		struct cmsghdr *c = CMSG_FIRSTHDR(&hdr);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(c), &fd, sizeof(int));
	}
	for (;;) {
		if (::sendmsg(socket, &hdr, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0)
			return 0;
		if (errno != EINTR)
			return -errno;
	}
}

int receiveMessage(int socket, Message *ret_message, std::vector<UniqueFd> *ret_fds)
{
	/* One byte more than a message, so that a longer packet is seen. */
	char extra = 0;
	struct iovec iov[2] = {{ret_message, sizeof(*ret_message)}, {&extra, 1}};
	alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * maxFds)];
	struct msghdr hdr = {};
	hdr.msg_iov = iov;
	hdr.msg_iovlen = 2;
	hdr.msg_control = control;
	hdr.msg_controllen = sizeof(control);
	ssize_t n = 0;
	do {
		n = ::recvmsg(socket, &hdr, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	} while (n < 0 && errno == EINTR);
	if (n < 0)
		return -errno;
	ret_fds->clear();
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&hdr); c; c = CMSG_NXTHDR(&hdr, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (size_t i = 0; i < count; i++) {
			int fd = -1;
			memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
			ret_fds->emplace_back(fd);
		}
	}
	if (n == 0 && ret_fds->empty())
		return 0;
	if (n != static_cast<ssize_t>(sizeof(*ret_message)))
		return -EBADMSG;
	if (hdr.msg_flags & MSG_CTRUNC)
		return ret_fds->size() >= maxFds ? -EBADMSG : -EMFILE;
	return 1;
}

int makeScratch(const char *name, uint64_t size)
{
	UniqueFd fd(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
	if (!fd)
		return -errno;
	if (::ftruncate(fd.get(), static_cast<off_t>(size)) < 0 ||
	    ::fcntl(fd.get(), F_ADD_SEALS, scratchSeals) < 0)
		return -errno;
	return fd.release();
}

bool isScratch(int fd, uint64_t size)
{
	const int seals = ::fcntl(fd, F_GET_SEALS);
	struct stat st = {};
	return seals >= 0 && (seals & scratchSeals) == scratchSeals && ::fstat(fd, &st) == 0 &&
	       static_cast<uint64_t>(st.st_size) >= size;
}

int makeIdentity(uint64_t size, const IdentityMark &mark)
{
	UniqueFd fd(::memfd_create("peerbuf-emulated-dmabuf", MFD_CLOEXEC | MFD_ALLOW_SEALING));
	if (!fd)
		return -errno;
	if (::ftruncate(fd.get(), static_cast<off_t>(size)) < 0)
		return -errno;
	const ssize_t n = ::pwrite(fd.get(), &mark, sizeof(mark), 0);
	if (n < 0)
		return -errno;
	if (n != static_cast<ssize_t>(sizeof(mark)))
		return -EIO;
	if (::fcntl(fd.get(), F_ADD_SEALS, identitySeals) < 0)
		return -errno;
	return fd.release();
}

bool readIdentity(int fd, IdentityMark *ret_mark)
{
	const int seals = ::fcntl(fd, F_GET_SEALS);
	if (seals < 0 || (seals & identitySeals) != identitySeals)
		return false;
	IdentityMark mark = {};
	if (::pread(fd, &mark, sizeof(mark), 0) != static_cast<ssize_t>(sizeof(mark)) ||
	    memcmp(mark.magic, identityMagic, sizeof(mark.magic)) != 0)
		return false;
	*ret_mark = mark;
	return true;
}

} // namespace peerbuf::emulated
