// SPDX-License-Identifier: BSD-3-Clause
#include "channel.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <vector>

#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/time.h>

#include "words.h"

namespace peerbuf::tools
{

namespace
{

/* A process that does not read for so long counts as hung. */
constexpr timeval sendPatience = {20, 0};
constexpr size_t shownOfGarbage = 40;

/** The start of what came, fit to be printed. */
std::string shown(const std::string &text)
{
	std::string out;
	for (const char c : text.substr(0, shownOfGarbage))
		out += c >= ' ' && c <= '~' ? c : '?';
	return "'" + out + (text.size() > shownOfGarbage ? "...'" : "'");
}

std::optional<uint64_t> natural(const Json &value)
{
	if (value.is_number_unsigned() || (value.is_number_integer() && value.get<int64_t>() >= 0))
		return value.get<uint64_t>();
	return std::nullopt;
}

} // namespace

Channel::Channel(UniqueFd socket, std::string other)
    : socket_(std::move(socket)),
      other_(std::move(other))
{
	setsockopt(socket_.get(), SOL_SOCKET, SO_SNDTIMEO, &sendPatience, sizeof(sendPatience));
}

bool Channel::pair(UniqueFd *ret_one, UniqueFd *ret_two)
{
	int fds[2];
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) < 0)
		return false;
	*ret_one = UniqueFd(fds[0]);
	*ret_two = UniqueFd(fds[1]);
	return true;
}

void Channel::close(const std::string &why)
{
	socket_.reset();
	if (problem_.empty())
		problem_ = why;
}

void Channel::refuse(const std::string &why)
{
	garbage_ = true;
	close("garbage from the " + other_ + ": " + why);
}

bool Channel::send(const Json &message)
{
	if (!socket_)
		return false;
	const std::string text = message.dump(-1, ' ', false, Json::error_handler_t::replace);
	ssize_t rc = 0;
	do {
		rc = ::send(socket_.get(), text.data(), text.size(), MSG_NOSIGNAL);
	} while (rc < 0 && errno == EINTR);
	if (rc == static_cast<ssize_t>(text.size()))
		return true;
	close(errno == EAGAIN ? "the " + other_ + " takes no message any more"
			      : "the " + other_ + " closed its socket (" + errnoWord(errno) + ")");
	return false;
}

std::optional<Json> Channel::receive()
{
	if (!socket_)
		return std::nullopt;
	static thread_local std::vector<char> buffer(longest);
	const auto read = [&] {
		return recv(socket_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT | MSG_TRUNC);
	};
	ssize_t n = read();
	/* it left while something was unread there; what it had sent before is behind the error */
	if (n < 0 && errno == ECONNRESET)
		n = read();
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return std::nullopt;
	if (n <= 0) {
		close("the " + other_ + " closed its socket" +
		      (n < 0 ? " (" + errnoWord(errno) + ")" : ""));
		return std::nullopt;
	}
	if (static_cast<size_t>(n) > longest) {
		refuse("a packet of " + std::to_string(n) + " bytes, at most " +
		       std::to_string(longest) + " are allowed");
		return std::nullopt;
	}
	const std::string text(buffer.data(), static_cast<size_t>(n));
	Json message = Json::parse(text, nullptr, false);
	if (!message.is_object()) {
		refuse(shown(text) + " is not a JSON object");
		return std::nullopt;
	}
	if (messageType(message).empty()) {
		refuse(shown(text) + " has no type");
		return std::nullopt;
	}
	return message;
}

void Idler::rest(std::initializer_list<int> fds)
{
	constexpr unsigned spins = 100;
	constexpr timespec pause = {0, 50'000};
	pollfd p[4] = {};
	nfds_t n = 0;
	if (++turns_ < spins) {
		sched_yield();
		return;
	}
	for (const int fd : fds)
		if (n < std::size(p))
			p[n++] = {fd, POLLIN, 0};
	ppoll(p, n, &pause, nullptr);
}

std::string messageType(const Json &message)
{
	const auto it = message.find("type");
	return it != message.end() && it->is_string() ? it->get<std::string>() : "";
}

const Json *Fields::find(const char *key)
{
	const auto it = message_.find(key);
	if (it != message_.end())
		return &*it;
	complain(key, "is missing");
	return nullptr;
}

void Fields::complain(const char *key, const char *what)
{
	if (problem_.empty())
		problem_ = "message '" + messageType(message_) + "': " + key + " " + what;
}

uint64_t Fields::number(const char *key, uint64_t least, uint64_t most)
{
	const Json *value = find(key);
	if (!value)
		return least;
	const auto n = natural(*value);
	if (n && *n >= least && *n <= most)
		return *n;
	complain(key, "is no number, or out of range");
	return least;
}

double Fields::real(const char *key, double least, double most)
{
	const Json *value = find(key);
	if (!value)
		return least;
	const double n = value->is_number() ? value->get<double>() : least - 1;
	if (!(n >= least && n <= most)) {
		complain(key, "is no number, or out of range");
		return least;
	}
	return n;
}

bool Fields::flag(const char *key)
{
	const Json *value = find(key);
	if (value && value->is_boolean())
		return value->get<bool>();
	complain(key, "is neither true nor false");
	return false;
}

std::string Fields::string(const char *key, size_t longest)
{
	const Json *value = find(key);
	if (!value)
		return "";
	if (!value->is_string() || value->get_ref<const std::string &>().size() > longest) {
		complain(key, "is no string, or too long");
		return "";
	}
	return value->get<std::string>();
}

std::string Fields::stringOrNull(const char *key, size_t longest)
{
	const Json *value = find(key);
	return value && value->is_null() ? "" : string(key, longest);
}

std::vector<std::pair<std::string, uint64_t>> Fields::counts(const char *key)
{
	std::vector<std::pair<std::string, uint64_t>> all;
	const Json *value = find(key);
	if (!value || !value->is_object()) {
		complain(key, "is no object");
		return all;
	}
	for (const auto &item : value->items()) {
		if (const auto n = natural(item.value()))
			all.emplace_back(item.key(), *n);
		else
			complain(key, "has something that is no number");
	}
	return all;
}

std::vector<std::string> Fields::strings(const char *key)
{
	std::vector<std::string> all;
	const Json *value = find(key);
	if (!value || !value->is_array()) {
		complain(key, "is no list");
		return all;
	}
	for (const Json &item : *value) {
		if (item.is_string())
			all.push_back(item.get<std::string>());
		else
			complain(key, "has something that is no string");
	}
	return all;
}

Json Fields::list(const char *key)
{
	const Json *value = find(key);
	if (value && value->is_array())
		return *value;
	complain(key, "is no list");
	return Json::array();
}

Json Fields::object(const char *key)
{
	const Json *value = find(key);
	if (value && value->is_object())
		return *value;
	complain(key, "is no object");
	return Json::object();
}

} // namespace peerbuf::tools
