// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_TOOLS_CHANNEL_H
#define PEERBUF_TOOLS_CHANNEL_H

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>

#include "output.h"
#include "unique_fd.h"

namespace peerbuf::tools
{

/**
 * One end of a SEQPACKET socket between two processes of the demo: a JSON object with a "type" in
 * each packet. Thread-bound.
 */
class Channel
{
public:
	static constexpr size_t longest = 64 << 10;

	/** @param other what the other end is called in messages. */
	Channel(UniqueFd socket, std::string other);
	/** Both ends. @return false with errno. */
	static bool pair(UniqueFd *ret_one, UniqueFd *ret_two);

	bool open() const { return static_cast<bool>(socket_); }
	int fd() const { return socket_.get(); }
	const std::string &other() const { return other_; }

	/** Waits a bounded time for room. @return false: the other end is gone; now closed. */
	bool send(const Json &message);
	/** One message if there is one, without waiting. Garbage and the end close the channel. */
	std::optional<Json> receive();
	/** Why it is closed, in words that name the other end; "" while it is open. */
	const std::string &problem() const { return problem_; }
	/** It was closed because of what came over it. */
	bool garbage() const { return garbage_; }
	/** A message that was well-formed JSON and yet is none of the protocol. */
	void refuse(const std::string &why);
	/** Done with it. @param why the problem() from now on. */
	void close(const std::string &why);

private:
	UniqueFd socket_;
	std::string other_;
	std::string problem_;
	bool garbage_ = false;
};

/** Takes the fields of a message; the first that is missing or wrong is kept. */
class Fields
{
public:
	explicit Fields(const Json &message) : message_(message) {}

	uint64_t number(const char *key, uint64_t least = 0, uint64_t most = UINT64_MAX);
	double real(const char *key, double least, double most);
	bool flag(const char *key);
	std::string string(const char *key, size_t longest = 4096);
	/** As string, or "" where it is null. */
	std::string stringOrNull(const char *key, size_t longest = 4096);
	/** Object of numbers. */
	std::vector<std::pair<std::string, uint64_t>> counts(const char *key);
	std::vector<std::string> strings(const char *key);
	/** Whatever is in it. */
	Json list(const char *key);
	Json object(const char *key);

	/** "" if all were right. */
	const std::string &problem() const { return problem_; }

private:
	const Json *find(const char *key);
	void complain(const char *key, const char *what);

	const Json &message_;
	std::string problem_;
};

/**
 * For loops that serve something that has no descriptor to wait at: spins while there is something
 * to do now and then, and leaves the CPU to others when there has been nothing for a while.
 * Thread-bound.
 */
class Idler
{
public:
	void busy() { turns_ = 0; }
	/** Nothing was done. @param fds that end the wait; of a closed channel -1. */
	void rest(std::initializer_list<int> fds);

private:
	unsigned turns_ = 0;
};

/** The "type" of a message that Channel::receive returned. */
std::string messageType(const Json &message);

} // namespace peerbuf::tools

#endif
