// SPDX-License-Identifier: BSD-3-Clause
#include <cstddef>
#include <fcntl.h>
#include <random>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <thread>
#include <unistd.h>

#include "exporter/emulated/wire.h"
#include "harness.h"

namespace peerbuf::emulated::test
{

namespace
{

/** A client that says what it likes. */
class Rude
{
public:
	explicit Rude(const std::string &path)
	    : socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0))
	{
		struct sockaddr_un address = {};
		address.sun_family = AF_UNIX;
		path.copy(address.sun_path, sizeof(address.sun_path) - 1);
		EXPECT_EQ(0, connect(socket.get(), reinterpret_cast<struct sockaddr *>(&address),
				     sizeof(address)));
	}

	void send(const void *data, size_t size, const std::vector<int> &fds = {}) const
	{
		struct iovec iov = {const_cast<void *>(data), size};
		alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 16)] = {};
		struct msghdr hdr = {};
		hdr.msg_iov = &iov;
		hdr.msg_iovlen = 1;
		if (!fds.empty()) {
			hdr.msg_control = control;
			hdr.msg_controllen = CMSG_SPACE(sizeof(int) * fds.size());
			struct cmsghdr *c = CMSG_FIRSTHDR(&hdr);
			c->cmsg_level = SOL_SOCKET;
			c->cmsg_type = SCM_RIGHTS;
			c->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
			memcpy(CMSG_DATA(c), fds.data(), sizeof(int) * fds.size());
		}
		(void)!::sendmsg(socket.get(), &hdr, MSG_NOSIGNAL);
	}
	void send(const Message &message, const std::vector<int> &fds = {}) const
	{
		send(&message, sizeof(message), fds);
	}

	/** Wait for a message. @return false: the connection is closed. */
	bool receive(Message *ret_message) const
	{
		char control[256];
		struct iovec iov = {ret_message, sizeof(*ret_message)};
		struct msghdr hdr = {};
		hdr.msg_iov = &iov;
		hdr.msg_iovlen = 1;
		hdr.msg_control = control;
		hdr.msg_controllen = sizeof(control);
		const ssize_t n = recvmsg(socket.get(), &hdr, MSG_CMSG_CLOEXEC);
		for (struct cmsghdr *c = CMSG_FIRSTHDR(&hdr); n > 0 && c;
		     c = CMSG_NXTHDR(&hdr, c)) {
			int fd = -1;
			memcpy(&fd, CMSG_DATA(c), sizeof(fd));
			close(fd);
		}
		return n > 0;
	}
	bool closed() const
	{
		Message ignored;
		while (receive(&ignored)) {
		}
		return true;
	}
	void greet() const
	{
		Message reply;
		send(makeMessage(Kind::Request, Op::Hello, 1));
		EXPECT_TRUE(receive(&reply));
		EXPECT_EQ(0, reply.status);
	}

	UniqueFd socket;
};

Message request(Op op)
{
	return makeMessage(Kind::Request, op, 2);
}

} // namespace

/* One of each: the connection is closed with a message that names it, and all else goes on. */
TEST(Garbage, GivenEachKindThenThatConnectionIsClosedWithAMessage)
{
	RunningDevice running("hbm=1M,profile=revokes");
	Device device("socket=" + running.path());
	const auto desc = device.alloc(4096);
	const uint64_t token = device.attached(desc.handle);
	const size_t fds = device.deviceFds(running);

	struct Case {
		const char *said;
		bool greeted;
		std::function<void(const Rude &)> send;
	};
	const auto with = [](Op op, const std::function<void(Message &)> &change) {
		return [op, change](const Rude &rude) {
			Message m = request(op);
			change(m);
			rude.send(m);
		};
	};
	const int spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
	const std::vector<Case> all = {
		{"wrong size", false, [](const Rude &r) { r.send("hello", 5); }},
		{"wrong size", true,
		 [](const Rude &r) { r.send(std::vector<char>(4096).data(), 4096); }},
		{"wrong magic", true, with(Op::Alloc, [](Message &m) { m.magic++; })},
		{"wrong protocol version", false, with(Op::Hello, [](Message &m) { m.version++; })},
		{"wrong size in the header", true, with(Op::Alloc, [](Message &m) { m.size--; })},
		{"reserved", true, with(Op::Alloc, [](Message &m) { m.reserved = 1; })},
		{"message type 2/3", true, with(Op::Alloc, [](Message &m) { m.kind = 2; })},
		{"message type 1/63", true, with(Op::Alloc, [](Message &m) { m.op = 63; })},
		{"message type 1/0", true, with(Op::Alloc, [](Message &m) { m.op = 0; })},
		{"alloc before hello", false, with(Op::Alloc, [](Message &) {})},
		{"hello twice", true, with(Op::Hello, [](Message &) {})},
		{"0 descriptors with get", true, with(Op::Get, [](Message &) {})},
		{"1 descriptors with alloc", true,
		 [spare](const Rude &r) { r.send(request(Op::Alloc), {spare}); }},
		{"2 descriptors with get", true,
		 [spare](const Rude &r) {
			 r.send(request(Op::Get), {spare, spare});
		 }},
		{"wrong size", true, /* so many that some are cut off */
		 [spare](const Rude &r) { r.send(request(Op::Get), std::vector<int>(16, spare)); }},
		{"no sealed memfd", true,
		 [spare](const Rude &r) {
			 Message alloc = request(Op::Alloc);
			 alloc.body.range.length = 4096;
			 r.send(alloc);
			 Message reply;
			 ASSERT_TRUE(r.receive(&reply));
			 Message read = request(Op::Read);
			 read.body.range.object = reply.body.buffer.buffer;
			 read.body.range.length = 1;
			 r.send(read, {spare});
		 }},
		/* names of things it does not have, among them other clients' */
		{"dropping", true,
		 with(Op::Drop,
		      [&](Message &m) { m.body.range = {desc.handle, 1, 0, 0, 0, 0, 0}; })},
		{"layout", true,
		 with(Op::Layout, [&](Message &m) { m.body.buffer.buffer = desc.handle; })},
		{"attach", true,
		 with(Op::Attach, [&](Message &m) { m.body.attach.buffer = desc.handle; })},
		{"detach", true,
		 with(Op::Detach, [&](Message &m) { m.body.range.object = token; })},
		{"pin", true, with(Op::Pin, [&](Message &m) { m.body.range.object = token; })},
		{"unpin", true, with(Op::Unpin, [&](Message &m) { m.body.range.object = token; })},
		{"map", true, with(Op::Map, [&](Message &m) { m.body.range.object = token; })},
		{"unmap", true, with(Op::Unmap, [&](Message &m) { m.body.range.object = token; })},
		{"export", true,
		 with(Op::ExportFd, [&](Message &m) { m.body.range.object = token; })},
		{"release", true,
		 with(Op::ReleaseFd, [&](Message &m) { m.body.range.object = token; })},
		{"offer", true,
		 with(Op::Offer, [&](Message &m) { m.body.offer.buffer = desc.handle; })},
		{"revoke", true,
		 with(Op::Revoke, [&](Message &m) { m.body.range.object = desc.handle; })},
		{"restore", true,
		 with(Op::Restore, [&](Message &m) { m.body.range.object = desc.handle; })},
		{"acknowledgement", true,
		 with(Op::Ack, [](Message &m) { m.body.notice.cookie = 5; })},
	};
	std::string before;
	for (const Case &c : all) {
		SCOPED_TRACE(c.said);
		const Rude rude(running.path());
		if (c.greeted)
			rude.greet();
		c.send(rude);
		EXPECT_TRUE(rude.closed());
		const std::string after = running.process().errors();
		EXPECT_CONTAINS(after.substr(before.size()), c.said);
		EXPECT_CONTAINS(after.substr(before.size()), "the connection is closed");
		before = after;
		EXPECT_EQ(fds, device.deviceFds(running));
		peerbuf_mapping m;
		ASSERT_EQ(0, device.map(token, 0, 4096, &m)) << device.why();
		device.slots.unmap(device.handle, token, &m);
	}
	close(spare);
	device.slots.detach(device.handle, token);
	EXPECT_EQ(0, device.slots.free(device.handle, desc.handle));
	EXPECT_TRUE(device.clean());
	EXPECT_EQ(0, device.tryAlloc(1 << 20));
}

/* Anything: bytes, near misses, right requests with wild numbers, descriptors. */
TEST(Garbage, GivenRandomMessagesThenTheDeviceGoesOnAndLosesNothing)
{
	RunningDevice running("hbm=1M,window=512K,profile=revokes,placements=device+host");
	Device device("socket=" + running.path());
	const auto desc = device.alloc(64 << 10);
	memset(reinterpret_cast<void *>(desc.address), 0x3c, desc.size);
	const uint64_t token = device.attached(desc.handle);
	const size_t fds = device.deviceFds(running);
	const int scratch = makeScratch("scratch", bulkChunk);
	for (uint64_t seed = 1; seed <= 150; seed++) {
		SCOPED_TRACE(seed);
		std::mt19937_64 random(seed);
		const Rude rude(running.path());
		if (seed % 8)
			rude.greet();
		const int n = static_cast<int>(random() % 20);
		for (int i = 0; i < n; i++) {
			Message m = request(static_cast<Op>(random() % 26));
			if (static_cast<Op>(m.op) == Op::Remove ||
			    static_cast<Op>(m.op) == Op::Fault)
				m.op = static_cast<uint16_t>(
					Op::Map); /* asked for, these are no garbage */
			uint64_t wild[4];
			for (uint64_t &w : wild)
				w = random() % 3 ? random() % 100 : random() >> (random() % 64);
			memcpy(m.body.raw, wild, sizeof(wild));
			if (random() % 2)
				m.body.range.object = 17 + random() % 12;
			if (static_cast<Op>(m.op) == Op::Attach)
				m.body.attach.allowPeer2peer = random() % 2;
			if (random() % 10 == 0)
				reinterpret_cast<uint8_t *>(&m)[random() % 48] ^= 1u
										  << (random() % 8);
			const bool wants = m.op == static_cast<uint16_t>(Op::Get) ||
					   m.op == static_cast<uint16_t>(Op::Read) ||
					   m.op == static_cast<uint16_t>(Op::Write);
			std::vector<int> sent;
			if (wants != (random() % 10 == 0))
				sent.assign(1, scratch);
			if (random() % 20 == 0)
				rude.send(&m, random() % (sizeof(m) + 1), sent);
			else
				rude.send(m, sent);
		}
		/* a request that any device closes on, so that its end can be waited for */
		rude.send("end", 3);
		EXPECT_TRUE(rude.closed());
	}
	close(scratch);
	for (const uint8_t byte : device.deviceBytes(desc.handle, 0, desc.size))
		ASSERT_EQ(0x3c, byte);
	peerbuf_mapping m;
	ASSERT_EQ(0, device.map(token, 0, 4096, &m)) << device.why();
	device.slots.unmap(device.handle, token, &m);
	EXPECT_EQ(fds, device.deviceFds(running));
	device.slots.detach(device.handle, token);
	EXPECT_EQ(0, device.slots.free(device.handle, desc.handle));
	EXPECT_TRUE(device.clean());
	EXPECT_EQ(0u, device.offer().window_used);
	/* not what an honest acknowledgement of a failed importer took for good */
	EXPECT_EQ(0u, device.stats().quarantined);
	EXPECT_EQ(0, device.tryAlloc(1 << 20)) << device.why();
}

namespace
{

/** A device that answers hello well and then does what the test says. */
class FalseDevice
{
public:
	using Answer = std::function<void(int socket, const Message &request)>;

	explicit FalseDevice(Answer answer, bool badHello = false)
	{
		char directory[] = "/tmp/peerbuf-test-XXXXXX";
		EXPECT_NE(nullptr, mkdtemp(directory));
		directory_ = directory;
		path = directory_ + "/device";
		listener_ = UniqueFd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
		struct sockaddr_un address = {};
		address.sun_family = AF_UNIX;
		path.copy(address.sun_path, sizeof(address.sun_path) - 1);
		EXPECT_EQ(0, bind(listener_.get(), reinterpret_cast<struct sockaddr *>(&address),
				  sizeof(address)));
		EXPECT_EQ(0, listen(listener_.get(), 1));
		thread_ = std::thread([this, answer = std::move(answer), badHello] {
			const UniqueFd client(
				accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
			Message m;
			while (recv(client.get(), &m, sizeof(m), 0) > 0) {
				if (static_cast<Op>(m.op) == Op::Hello && !badHello)
					greet(client.get(), m);
				else
					answer(client.get(), m);
			}
		});
	}
	~FalseDevice()
	{
		thread_.join();
		unlink(path.c_str());
		rmdir(directory_.c_str());
	}

	static void greet(int client, const Message &hello)
	{
		peerbuf::test::FakeHost host;
		plugin::Options none(host.raw(), nullptr, 0);
		Message reply = makeMessage(Kind::Reply, Op::Hello, hello.serial);
		reply.body.hello.settings = readSettings(none);
		plugin::copyName(reply.body.hello.device, "emulated:false");
		const UniqueFd memory(makeScratch("false", reply.body.hello.settings.total()));
		EXPECT_EQ(0, sendMessage(client, reply, memory.get()));
	}

	std::string path;

private:
	std::string directory_;
	UniqueFd listener_;
	std::thread thread_;
};

} // namespace

TEST(FalseDevice, GivenGarbageFromTheDeviceThenItIsGoneAndTheReasonIsProtocol)
{
	const auto altered = [](const std::function<void(Message &)> &change) {
		return [change](int socket, const Message &asked) {
			Message m =
				makeMessage(Kind::Reply, static_cast<Op>(asked.op), asked.serial);
			change(m);
			(void)!sendMessage(socket, m, -1);
		};
	};
	const std::vector<std::pair<const char *, FalseDevice::Answer>> all = {
		{"wrong size", [](int socket, const Message &) { (void)!send(socket, "x", 1, 0); }},
		{"wrong magic", altered([](Message &m) { m.magic = 0; })},
		{"wrong protocol version", altered([](Message &m) { m.version = 99; })},
		{"nobody waits", altered([](Message &m) { m.serial += 1000; })},
		{"nobody waits", altered([](Message &m) { m.op = 9; })},
		{"message type", altered([](Message &m) { m.kind = 7; })},
		{"status 5", altered([](Message &m) { m.status = 5; })},
		{"event 3", altered([](Message &m) { m.kind = 3; })},
		{"1 descriptors",
		 [](int socket, const Message &asked) {
			 (void)!sendMessage(
				 socket,
				 makeMessage(Kind::Reply, static_cast<Op>(asked.op), asked.serial),
				 socket);
		 }},
	};
	const size_t fds = openFds(getpid());
	for (const auto &[said, answer] : all) {
		SCOPED_TRACE(said);
		FalseDevice falseDevice(answer);
		Device device("timeout=20000,socket=" + falseDevice.path);
		EXPECT_ERRNO(ENODEV, device.tryAlloc(4096));
		EXPECT_EQ(PEERBUF_ERR_PROTOCOL, device.errc());
		EXPECT_CONTAINS(device.why(), said);
		EXPECT_ERRNO(ENODEV, device.slots.progress(device.handle));
	}
	EXPECT_EQ(fds, openFds(getpid()));
}

TEST(FalseDevice, GivenANonsensicalLayoutThenRefused)
{
	const std::vector<std::function<void(BufferBody &)>> all = {
		[](BufferBody &b) { b.total = b.count = 1; }, /* length 0 */
		[](BufferBody &b) {
			b.total = b.count = 1, b.runs[0] = {0, 8192};
		}, /* too long */
		[](BufferBody &b) {
			b.total = b.count = 1, b.runs[0] = {1ull << 40, 4096};
		},
		[](BufferBody &b) {
			b.total = b.count = 1, b.runs[0] = {UINT64_MAX, 4096};
		},
		[](BufferBody &b) { b.total = 1, b.count = 57; },
		[](BufferBody &b) { b.total = UINT32_MAX, b.count = 1; },
		[](BufferBody &b) { b.total = 0; },
	};
	const size_t fds = openFds(getpid());
	for (const auto &change : all) {
		FalseDevice falseDevice([&change](int socket, const Message &asked) {
			Message m =
				makeMessage(Kind::Reply, static_cast<Op>(asked.op), asked.serial);
			if (static_cast<Op>(asked.op) == Op::Alloc) {
				m.body.buffer.buffer = 1;
				m.body.buffer.size = 4096;
				m.body.buffer.generation = 1;
				change(m.body.buffer);
			}
			(void)!sendMessage(socket, m, -1);
		});
		Device device("socket=" + falseDevice.path);
		EXPECT_ERRNO(EPROTO, device.tryAlloc(4096));
		EXPECT_EQ(PEERBUF_ERR_PROTOCOL, device.errc()) << device.why();
	}
	EXPECT_EQ(fds, openFds(getpid()));
}

TEST(FalseDevice, GivenHelloIsAnsweredWithGarbageThenOpenFails)
{
	const size_t fds = openFds(getpid());
	{
		FalseDevice falseDevice(
			[](int socket, const Message &) { (void)!send(socket, "no device", 9, 0); },
			true);
		peerbuf::test::FakeHost host;
		EXPECT_ERRNO(ENODEV, Device::tryOpen(host, "socket=" + falseDevice.path));
		EXPECT_EQ(PEERBUF_ERR_PROTOCOL, host.failure().errc);
	}
	{
		/* memory that is not memory */
		FalseDevice falseDevice(
			[](int socket, const Message &asked) {
				Message m = makeMessage(Kind::Reply, Op::Hello, asked.serial);
				m.body.hello.settings.hbm = 1 << 20;
				(void)!sendMessage(socket, m, socket);
			},
			true);
		peerbuf::test::FakeHost host;
		EXPECT_ERRNO(EPROTO, Device::tryOpen(host, "socket=" + falseDevice.path));
		EXPECT_EQ(PEERBUF_ERR_PROTOCOL, host.failure().errc);
	}
	EXPECT_EQ(fds, openFds(getpid()));
}

} // namespace peerbuf::emulated::test
