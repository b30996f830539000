// SPDX-License-Identifier: BSD-3-Clause
#include "connection.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

namespace peerbuf::emulated
{

using plugin::text;
using Clock = std::chrono::steady_clock;

namespace
{

/** Wait until @p fd is ready. @return false: the time is up. */
bool waitFor(int fd, short events, bool forever, Clock::time_point deadline)
{
	for (;;) {
		int ms = -1;
		if (!forever) {
			const auto left = std::chrono::ceil<std::chrono::milliseconds>(
				deadline - Clock::now());
			ms = static_cast<int>(std::clamp<int64_t>(left.count(), 0, 60000));
		}
		struct pollfd p = {fd, events, 0};
		const int rc = ::poll(&p, 1, ms);
		if (rc > 0 || (rc < 0 && errno != EINTR))
			return true;
		if (rc == 0 && !forever && Clock::now() >= deadline)
			return false;
	}
}

} // namespace

int Connection::create(UniqueFd socket, uint64_t timeoutNs,
		       std::unique_ptr<Connection> *ret_connection)
{
	std::unique_ptr<Connection> c(new Connection(std::move(socket), timeoutNs));
	c->epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
	if (!c->epoll_)
		return -errno;
	c->wake_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
	if (!c->wake_)
		return -errno;
	for (const int fd : {c->socket_.get(), c->wake_.get()}) {
		struct epoll_event event = {};
		event.events = EPOLLIN;
		if (::epoll_ctl(c->epoll_.get(), EPOLL_CTL_ADD, fd, &event) < 0)
			return -errno;
	}
	*ret_connection = std::move(c);
	return 0;
}

int Connection::sendLocked(std::unique_lock<std::mutex> &lock, const Message &message, int fd)
{
	const auto deadline = Clock::now() + std::chrono::nanoseconds(timeoutNs_);
	while (!gone_) {
		const int rc = sendMessage(socket_.get(), message, fd);
		if (rc == 0)
			return 0;
		if (rc == -EAGAIN) {
			lock.unlock();
			const bool ready =
				waitFor(socket_.get(), POLLOUT, timeoutNs_ == 0, deadline);
			lock.lock();
			if (ready)
				continue;
			lose(PEERBUF_ERR_TIMEOUT, "the device takes no message any more");
		} else if (rc == -ETOOMANYREFS) {
			return rc; /* of this user's descriptors in flight; the device is well */
		} else {
			/* What it said before it went may still be there to read. */
			readAvailable();
			lose(PEERBUF_ERR_DEVICE_GONE,
			     text("the device process ended: ", errnoText(-rc)));
		}
	}
	return -ENODEV;
}

int Connection::call(Message *request, int fd, Message *ret_reply, UniqueFd *ret_fd)
{
	std::unique_lock<std::mutex> lock(mutex_);
	Waiter waiter;
	waiter.op = static_cast<Op>(request->op);
	request->serial = ++lastSerial_;
	waiters_.emplace(request->serial, &waiter);
	const int rc = sendLocked(lock, *request, fd);
	if (rc < 0 && !waiter.done) {
		waiters_.erase(request->serial);
		return rc;
	}
	const auto deadline = Clock::now() + std::chrono::nanoseconds(timeoutNs_);
	while (!waiter.done && !gone_) {
		if (reading_) {
			changed_.wait(lock);
			continue;
		}
		reading_ = true;
		lock.unlock();
		const bool ready = waitFor(socket_.get(), POLLIN, timeoutNs_ == 0, deadline);
		lock.lock();
		reading_ = false;
		if (ready)
			readAvailable();
		else
			lose(PEERBUF_ERR_TIMEOUT,
			     text("the device did not answer ", opName(request->op), " in ",
				  timeoutNs_ / 1000000, " ms"));
		changed_.notify_all();
	}
	waiters_.erase(request->serial);
	if (!waiter.done)
		return -ENODEV;
	*ret_reply = waiter.reply;
	if (waiter.fdLost)
		return -EMFILE;
	if (ret_fd)
		*ret_fd = std::move(waiter.fd);
	return 0;
}

int Connection::say(const Message &message)
{
	std::unique_lock<std::mutex> lock(mutex_);
	return sendLocked(lock, message, -1);
}

void Connection::hangUp()
{
	std::lock_guard<std::mutex> lock(mutex_);
	lose(PEERBUF_ERR_DEVICE_GONE, "the device was closed");
}

void Connection::pump()
{
	std::lock_guard<std::mutex> lock(mutex_);
	/* A thread that waits at the socket must be the one to read, or it waits for nothing. */
	if (reading_)
		return;
	readAvailable();
	changed_.notify_all();
}

void Connection::readAvailable()
{
	while (!gone_) {
		Message message;
		std::vector<UniqueFd> fds;
		const int rc = receiveMessage(socket_.get(), &message, &fds);
		if (rc == -EAGAIN)
			return;
		if (rc == 1 || rc == -EMFILE)
			accept(message, std::move(fds), rc == -EMFILE);
		else if (rc == -EBADMSG)
			lose(PEERBUF_ERR_PROTOCOL, "the device sent a packet of the wrong size");
		else
			lose(PEERBUF_ERR_DEVICE_GONE,
			     rc == 0 ? "the device process ended or closed the connection"
				     : text("the device process ended (", errnoText(-rc), ")"));
	}
}

void Connection::accept(const Message &message, std::vector<UniqueFd> fds, bool fdLost)
{
	if (const char *problem = headerProblem(message)) {
		lose(PEERBUF_ERR_PROTOCOL, text("the device sent garbage: ", problem));
		return;
	}
	const Op op = static_cast<Op>(message.op);
	if (message.kind == static_cast<uint16_t>(Kind::Event)) {
		if ((op != Op::Invalidate && op != Op::Placed && op != Op::Moved) || !fds.empty() ||
		    fdLost) {
			lose(PEERBUF_ERR_PROTOCOL,
			     text("the device sent garbage: event ", message.op, " with ",
				  fds.size(), " descriptors"));
			return;
		}
		events_.push_back(message);
		signal(true);
		return;
	}
	auto it = waiters_.find(message.serial);
	if (message.kind != static_cast<uint16_t>(Kind::Reply) || it == waiters_.end() ||
	    it->second->op != op || it->second->done) {
		lose(PEERBUF_ERR_PROTOCOL,
		     text("the device sent garbage: message type ", message.kind, "/", message.op,
			  " with serial ", message.serial, ", which nobody waits for"));
		return;
	}
	const bool wantsFd = message.status == 0 && (op == Op::Hello || op == Op::ExportFd);
	if (message.status > 0 || (!fdLost && fds.size() != (wantsFd ? 1 : 0)) ||
	    (fdLost && !wantsFd)) {
		lose(PEERBUF_ERR_PROTOCOL,
		     text("the device sent garbage: ", opName(message.op), " with status ",
			  message.status, " and ", fds.size(), " descriptors"));
		return;
	}
	Waiter &waiter = *it->second;
	waiter.reply = message;
	waiter.fdLost = fdLost;
	if (wantsFd && !fdLost)
		waiter.fd = std::move(fds[0]);
	waiter.done = true;
}

void Connection::lose(uint32_t errc, const std::string &why)
{
	if (gone_)
		return;
	gone_ = true;
	goneErrc_ = errc;
	goneWhy_ = why;
	/* The other side must not go on believing in us, whatever was wrong. */
	::shutdown(socket_.get(), SHUT_RDWR);
	::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, socket_.get(), nullptr);
	signal(true);
	changed_.notify_all();
}

void Connection::signal(bool on)
{
	if (on == signalled_)
		return;
	uint64_t value = 1;
	const ssize_t n = on ? ::write(wake_.get(), &value, sizeof(value))
			     : ::read(wake_.get(), &value, sizeof(value));
	if (n == static_cast<ssize_t>(sizeof(value)))
		signalled_ = on;
}

bool Connection::nextEvent(Message *ret_event)
{
	std::lock_guard<std::mutex> lock(mutex_);
	if (events_.empty())
		return false;
	*ret_event = events_.front();
	events_.pop_front();
	if (events_.empty() && !(gone_ && !lossHandled_))
		signal(false);
	return true;
}

bool Connection::gone() const
{
	std::lock_guard<std::mutex> lock(mutex_);
	return gone_;
}

std::string Connection::whyGone(uint32_t *ret_errc) const
{
	std::lock_guard<std::mutex> lock(mutex_);
	*ret_errc = goneErrc_;
	return goneWhy_;
}

void Connection::lossHandled()
{
	std::lock_guard<std::mutex> lock(mutex_);
	lossHandled_ = true;
	if (events_.empty())
		signal(false);
}

} // namespace peerbuf::emulated
