// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_EXPORTER_EMULATED_CONNECTION_H
#define PEERBUF_EXPORTER_EMULATED_CONNECTION_H

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "wire.h"

namespace peerbuf::emulated
{

/**
 * A client's side of the socket to the device. Thread-safe.
 *
 * Replies and events come on one socket. Of the threads that wait for a reply one reads for all:
 * it hands replies to whom they belong and queues events for progress.
 */
class Connection
{
public:
	/** @param timeoutNs a device silent for so long counts as gone; 0: wait for ever. */
	static int create(UniqueFd socket, uint64_t timeoutNs,
			  std::unique_ptr<Connection> *ret_connection);

	/**
	 * Ask and wait. @p request gets its serial here.
	 * @return 0: *ret_reply is there, its status says the rest; -ENODEV: the device is gone.
	 */
	int call(Message *request, int fd, Message *ret_reply, UniqueFd *ret_fd);
	/** Say without an answer. */
	int say(const Message &message);

	/** Say goodbye: the device sees the end even if a forked child still has the socket. */
	void hangUp();

	/** Read what is there, without blocking. */
	void pump();
	/** @return false: no event is queued. */
	bool nextEvent(Message *ret_event);

	bool gone() const;
	/** Why, once gone: the sentence and its peerbuf_errc. */
	std::string whyGone(uint32_t *ret_errc) const;

	/** Readable when pump or nextEvent has something, or the device has just gone. */
	int eventFd() const { return epoll_.get(); }
	/** The loss has been dealt with: it no longer makes eventFd readable. */
	void lossHandled();

private:
	struct Waiter {
		Op op;
		Message reply;
		UniqueFd fd;
		bool done = false;
		bool fdLost = false;
	};

	Connection(UniqueFd socket, uint64_t timeoutNs)
	    : socket_(std::move(socket)),
	      timeoutNs_(timeoutNs)
	{
	}

	/** The rest needs mutex_ held. */
	void readAvailable();
	void accept(const Message &message, std::vector<UniqueFd> fds, bool fdLost);
	void lose(uint32_t errc, const std::string &why);
	void signal(bool on);
	int sendLocked(std::unique_lock<std::mutex> &lock, const Message &message, int fd);

	const UniqueFd socket_;
	const uint64_t timeoutNs_;
	UniqueFd epoll_;
	UniqueFd wake_; /* an eventfd: events are queued, or the loss is news */

	mutable std::mutex mutex_;
	std::condition_variable changed_;
	bool reading_ = false; /* some thread waits at the socket */
	uint64_t lastSerial_ = 0;
	std::map<uint64_t, Waiter *> waiters_;
	std::deque<Message> events_;
	bool signalled_ = false;
	bool gone_ = false;
	bool lossHandled_ = false;
	uint32_t goneErrc_ = 0;
	std::string goneWhy_;
};

} // namespace peerbuf::emulated

#endif
