// SPDX-License-Identifier: BSD-3-Clause
/**
 * @file plugin_support.hpp
 * Help for plugins written in C++: options, errors in words, entry points that never throw, faults
 * that tests ask for.
 *
 * Header only, and it needs nothing but the C headers beside it: a plugin that uses it links no
 * symbol of peerbuf.
 */
#ifndef PEERBUF_PLUGIN_SUPPORT_HPP
#define PEERBUF_PLUGIN_SUPPORT_HPP

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <peerbuf/plugin.h>

namespace peerbuf::plugin
{

/** Everything printable, one after the other. */
template <typename... Parts> std::string text(const Parts &...parts)
{
	std::ostringstream out;
	(out << ... << parts);
	return out.str();
}

/** "0x1000". */
inline std::string hex(uint64_t value)
{
	std::ostringstream out;
	out << "0x" << std::hex << value;
	return out.str();
}

/** "ENOENT (No such file or directory)". @param err an errno of either sign. Thread-safe. */
inline std::string errnoText(int err)
{
	/* strerror shares a buffer between threads; these two may not know the number */
	const int number = err < 0 ? -err : err;
	const char *name = strerrorname_np(number);
	const char *words = strerrordesc_np(number);
	return name && words ? text(name, " (", words, ")") : text("errno ", number);
}

/**
 * Who exported the dma-buf @p fd, as the kernel calls it (fdinfo's exp_name); "" where it is none.
 * Opens and closes a file. Thread-safe.
 */
inline std::string dmabufExporter(int fd)
{
	std::ifstream info("/proc/self/fdinfo/" + std::to_string(fd));
	constexpr std::string_view key = "exp_name:";
	for (std::string line; std::getline(info, line);) {
		if (line.compare(0, key.size(), key) != 0)
			continue;
		const size_t at = line.find_first_not_of(" \t", key.size());
		return at == std::string::npos ? "" : line.substr(at);
	}
	return "";
}

/**
 * Fill a structure of the ABI that the other side allocated: all of it is computed in @p from, and
 * no more is written than the other side knows of.
 */
template <typename T> void copyOut(const T &from, T *to)
{
	const uint32_t size = to->struct_size;
	std::memcpy(to, &from, std::min<size_t>(size, sizeof(T)));
	to->struct_size = size;
}

/** The services of the host, with C++ manners. Copyable; reentrant. */
class Host
{
public:
	explicit Host(const peerbuf_host *host) : host_(host) {}

	const peerbuf_host *raw() const { return host_; }

	/** Return this from a slot: it says why in words and gives -err back. @param err positive.
	 */
	int fail(int err, const std::string &why, uint32_t errc = PEERBUF_OK) const
	{
		host_->fail(host_, errc, why.c_str());
		return -err;
	}
	void debug(const std::string &line) const
	{
		host_->log(host_, PEERBUF_LOG_DEBUG, line.c_str());
	}
	void warn(const std::string &line) const
	{
		host_->log(host_, PEERBUF_LOG_WARN, line.c_str());
	}
	uint64_t nowNs() const { return host_->now_ns(host_); }

private:
	const peerbuf_host *host_;
};

/**
 * Run a slot's body; what it throws becomes an errno, since nothing may be thrown over the ABI.
 * @return what @p body returned, -ENOMEM for bad_alloc, -EIO for anything else.
 */
template <typename Body> int guarded(const peerbuf_host *host, Body &&body) noexcept
{
	try {
		return std::forward<Body>(body)();
	} catch (const std::bad_alloc &) {
		return -ENOMEM;
	} catch (const std::exception &e) {
		if (host)
			host->fail(host, PEERBUF_ERR_INTERNAL, e.what());
		return -EIO;
	} catch (...) {
		return -EIO;
	}
}

/** The same for slots that return nothing. */
template <typename Body> void guardedVoid(Body &&body) noexcept
{
	try {
		std::forward<Body>(body)();
	} catch (...) { // a slot without a result has nobody to tell
	}
}

/** Copy into a fixed field, cut if too long, always terminated. */
template <size_t N> void copyName(char (&to)[N], std::string_view from)
{
	const size_t n = from.size() < N - 1 ? from.size() : N - 1;
	from.copy(to, n);
	to[n] = '\0';
}

/**
 * The options of open: each is taken once, and what is left over is an error that lists what there
 * is. Thread-bound.
 *
 *     Options options(host, params, n);
 *     uint64_t size = options.bytes("hbm", 64 << 20, "device memory");
 *     if (int rc = options.finish()) return rc;
 */
class Options
{
public:
	Options(const peerbuf_host *host, const peerbuf_param *params, size_t n) : host_(host)
	{
		for (size_t i = 0; i < n; i++) {
			const char *key = params[i].key ? params[i].key : "";
			const char *value = params[i].value ? params[i].value : "";
			if (!given_.emplace(key, value).second)
				complain(text("option '", key, "' is given twice"));
		}
	}

	std::string string(const std::string &key, const std::string &fallback)
	{
		known_.push_back(key);
		auto it = given_.find(key);
		if (it == given_.end())
			return fallback;
		std::string value = it->second;
		given_.erase(it);
		return value;
	}

	/** One of @p choices. */
	std::string choice(const std::string &key, const std::vector<std::string> &choices,
			   const std::string &fallback)
	{
		std::string value = string(key, fallback);
		std::string list;
		for (const auto &c : choices) {
			if (c == value)
				return value;
			list += (list.empty() ? "" : ", ") + c;
		}
		complain(text("option ", key, "='", value, "': it is one of ", list));
		return fallback;
	}

	bool flag(const std::string &key, bool fallback)
	{
		const std::string value =
			choice(key, {"yes", "no", "1", "0"}, fallback ? "yes" : "no");
		return value == "yes" || value == "1";
	}

	/** A whole number, decimal or 0x..., at most @p max. */
	uint64_t number(const std::string &key, uint64_t fallback, uint64_t min = 0,
			uint64_t max = UINT64_MAX)
	{
		return parsed(key, fallback, min, max, false);
	}

	/** The same with an optional K, M, G or T (powers of 1024) behind it. */
	uint64_t bytes(const std::string &key, uint64_t fallback, uint64_t min = 0,
		       uint64_t max = UINT64_MAX)
	{
		return parsed(key, fallback, min, max, true);
	}

	/** An error found by the plugin itself. The first one is kept. */
	void complain(const std::string &why)
	{
		if (problem_.empty())
			problem_ = why;
	}

	/** Call once all options were taken. @return 0, or -EINVAL with the reason told to the
	 * host. */
	int finish()
	{
		if (problem_.empty() && !given_.empty()) {
			std::string list;
			for (const auto &k : known_)
				list += (list.empty() ? "" : ", ") + k;
			problem_ = text("unknown option '", given_.begin()->first,
					"'; there are: ", list.empty() ? "none" : list);
		}
		return problem_.empty()
			       ? 0
			       : host_.fail(EINVAL, problem_, PEERBUF_ERR_INVALID_ARGUMENT);
	}

private:
	uint64_t parsed(const std::string &key, uint64_t fallback, uint64_t min, uint64_t max,
			bool suffix)
	{
		const std::string value = string(key, "");
		if (value.empty())
			return fallback;
		const std::optional<uint64_t> n = parse(value, suffix);
		if (!n || *n < min || *n > max) {
			complain(text("option ", key, "='", value, "': a whole number from ", min,
				      " to ", max, suffix ? ", K, M, G or T may follow" : ""));
			return fallback;
		}
		return *n;
	}

	static std::optional<uint64_t> parse(std::string_view value, bool suffix)
	{
		uint64_t n = 0;
		int base = 10;
		if (value.starts_with("0x")) {
			base = 16;
			value.remove_prefix(2);
		}
		const auto [end, ec] =
			std::from_chars(value.data(), value.data() + value.size(), n, base);
		if (ec != std::errc())
			return std::nullopt;
		const std::string_view rest(end,
					    static_cast<size_t>(value.data() + value.size() - end));
		if (rest.empty())
			return n;
		const size_t power = std::string_view("KMGT").find(rest[0]);
		if (!suffix || rest.size() != 1 || power == std::string_view::npos)
			return std::nullopt;
		const unsigned shift = 10 * (static_cast<unsigned>(power) + 1);
		if (n > (UINT64_MAX >> shift))
			return std::nullopt;
		return n << shift;
	}

	Host host_;
	std::map<std::string, std::string> given_;
	std::vector<std::string> known_;
	std::string problem_;
};

/**
 * The faults of testing.h: steps that fail or take their time because a test wants it. Thread-safe;
 * its lock is a leaf.
 */
class FaultPlan
{
public:
	/** @param names the steps that there are; literals. */
	template <size_t N>
	explicit FaultPlan(const char *const (&names)[N]) : names_(names, names + N),
							    faults_(N)
	{
	}

	/**
	 * @p step is reached. May sleep: call it with no lock held.
	 * @return the fault that is due now: 0 or a negative errno, after its delay.
	 */
	int due(std::string_view step)
	{
		if (armed_.load(std::memory_order_relaxed) == 0)
			return 0;
		Fault now;
		{
			std::lock_guard<std::mutex> lock(mutex_);
			Fault *fault = find(step);
			if (!fault || fault->count == 0)
				return 0;
			if (fault->skip > 0) {
				fault->skip--;
				return 0;
			}
			now = *fault;
			if (--fault->count == 0)
				armed_--;
		}
		if (now.delayNs)
			std::this_thread::sleep_for(std::chrono::nanoseconds(now.delayNs));
		return now.err;
	}

	/** As in testing.h. @return -ENOENT: no such step. */
	int fault(std::string_view step, uint32_t skip, uint32_t count, int err, uint64_t delayNs)
	{
		std::lock_guard<std::mutex> lock(mutex_);
		Fault *fault = find(step);
		if (!fault)
			return -ENOENT;
		if (fault->count == 0 && count > 0)
			armed_++;
		if (fault->count > 0 && count == 0)
			armed_--;
		*fault = {skip, count, err, delayNs};
		return 0;
	}

	/** The same for a slot: the host is told what steps there are. @p step may be null. */
	int fault(const Host &host, const char *step, uint32_t skip, uint32_t count, int err,
		  uint64_t delayNs)
	{
		const std::string name = step ? step : "";
		const int rc = fault(name, skip, count, err, delayNs);
		return rc ? host.fail(-rc, text("no step '", name, "'; there are: ", stepList()))
			  : 0;
	}

	bool knows(std::string_view step) const
	{
		return std::find(names_.begin(), names_.end(), step) != names_.end();
	}

	std::string stepList() const
	{
		std::string list;
		for (const char *name : names_)
			list += (list.empty() ? "" : ", ") + std::string(name);
		return list;
	}

private:
	struct Fault {
		uint32_t skip = 0;
		uint32_t count = 0;
		int err = 0;
		uint64_t delayNs = 0;
	};

	Fault *find(std::string_view step)
	{
		for (size_t i = 0; i < names_.size(); i++)
			if (step == names_[i])
				return &faults_[i];
		return nullptr;
	}

	const std::vector<const char *> names_;
	std::atomic<uint32_t> armed_{0}; /* steps with a fault, so that real work takes no lock */
	std::mutex mutex_;
	std::vector<Fault> faults_; /* as names_; under mutex_ */
};

/** Objects behind the 64-bit tokens of the ABI; tokens are never used twice. Thread-safe. */
template <typename T> class Tokens
{
public:
	uint64_t add(std::shared_ptr<T> object)
	{
		std::lock_guard<std::mutex> lock(mutex_);
		const uint64_t token = ++last_;
		objects_.emplace(token, std::move(object));
		return token;
	}
	/** @return null for a token that is not, or no longer, known. */
	std::shared_ptr<T> find(uint64_t token) const
	{
		std::lock_guard<std::mutex> lock(mutex_);
		auto it = objects_.find(token);
		return it == objects_.end() ? nullptr : it->second;
	}
	/** @return the object, null if there was none. */
	std::shared_ptr<T> take(uint64_t token)
	{
		std::lock_guard<std::mutex> lock(mutex_);
		auto it = objects_.find(token);
		if (it == objects_.end())
			return nullptr;
		std::shared_ptr<T> object = std::move(it->second);
		objects_.erase(it);
		return object;
	}
	size_t size() const
	{
		std::lock_guard<std::mutex> lock(mutex_);
		return objects_.size();
	}

private:
	mutable std::mutex mutex_;
	std::map<uint64_t, std::shared_ptr<T>> objects_;
	uint64_t last_ = 0;
};

} // namespace peerbuf::plugin

#endif
