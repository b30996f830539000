// SPDX-License-Identifier: BSD-3-Clause
/**
 * @file peerbuf.hpp
 * peerbuf.h for C++: the same calls, with objects that give back what they hold.
 *
 * Header only; nothing throws. Calls return 0 or a negative errno as in C, and lastError() says
 * more. Every object is empty until it was opened and may be closed early with reset().
 */
#ifndef PEERBUF_PEERBUF_HPP
#define PEERBUF_PEERBUF_HPP

#include <cstdint>
#include <utility>
#include <vector>

#include <peerbuf/peerbuf.h>

namespace peerbuf
{

/** peerbuf_last_error. */
inline const peerbuf_error &lastError()
{
	return *peerbuf_last_error();
}

/** A structure of the ABI with its struct_size set and all else zero. */
template <typename T> T sized()
{
	T value = {};
	value.struct_size = sizeof(T);
	return value;
}

/** Owns a context. Outlives every object made from it. Thread-safe as the context is. */
class Context
{
public:
	Context() = default;
	Context(Context &&other) noexcept : ctx_(std::exchange(other.ctx_, nullptr)) {}
	Context &operator=(Context &&other) noexcept
	{
		std::swap(ctx_, other.ctx_);
		return *this;
	}
	Context(const Context &) = delete;
	Context &operator=(const Context &) = delete;
	~Context() { reset(); }

	int open(const peerbuf_open_attr *attr = nullptr)
	{
		reset();
		return peerbuf_open(attr, &ctx_);
	}
	void reset() { peerbuf_close(std::exchange(ctx_, nullptr)); }
	peerbuf_context *get() const { return ctx_; }
	explicit operator bool() const { return ctx_; }

	int progress() { return peerbuf_progress(ctx_); }
	int eventFd() const { return peerbuf_event_fd(ctx_); }
	/** @return 1: an event was written; 0: none. */
	int nextEvent(peerbuf_event &event)
	{
		event = sized<peerbuf_event>();
		return peerbuf_next_event(ctx_, &event);
	}

private:
	peerbuf_context *ctx_ = nullptr;
};

/** An id of a context together with the call that ends it. Thread-bound. */
template <int (*End)(peerbuf_context *, uint64_t)> class Handle
{
public:
	Handle() = default;
	Handle(peerbuf_context *ctx, uint64_t id) : ctx_(ctx), id_(id) {}
	Handle(Handle &&other) noexcept
	    : ctx_(std::exchange(other.ctx_, nullptr)),
	      id_(std::exchange(other.id_, 0))
	{
	}
	Handle &operator=(Handle &&other) noexcept
	{
		std::swap(ctx_, other.ctx_);
		std::swap(id_, other.id_);
		return *this;
	}
	Handle(const Handle &) = delete;
	Handle &operator=(const Handle &) = delete;
	~Handle() { reset(); }

	uint64_t id() const { return id_; }
	explicit operator bool() const { return id_; }
	/** End it now. @return what the call returned; 0 for an empty one. */
	int reset() { return id_ ? End(ctx_, std::exchange(id_, 0)) : 0; }

private:
	peerbuf_context *ctx_ = nullptr;
	uint64_t id_ = 0;
};

/** An open exporter. */
class ExporterHandle : public Handle<peerbuf_exporter_close>
{
public:
	using Handle::Handle;
	int open(const Context &ctx, const char *name,
		 const std::vector<peerbuf_param> &params = {})
	{
		peerbuf_exporter_t id = 0;
		const int rc =
			peerbuf_exporter_open(ctx.get(), name, params.data(), params.size(), &id);
		if (!rc)
			static_cast<Handle &>(*this) = Handle(ctx.get(), id);
		return rc;
	}
};

/** An importer opened on the application's objects. */
class ImporterHandle : public Handle<peerbuf_importer_close>
{
public:
	using Handle::Handle;
	int open(const Context &ctx, const char *name,
		 const std::vector<peerbuf_param> &params = {}, const void *objects = nullptr)
	{
		peerbuf_importer_t id = 0;
		const int rc = peerbuf_importer_open(ctx.get(), name, params.data(), params.size(),
						     objects, &id);
		if (!rc)
			static_cast<Handle &>(*this) = Handle(ctx.get(), id);
		return rc;
	}
};

/** Memory of a device. */
class BufferHandle : public Handle<peerbuf_free>
{
public:
	using Handle::Handle;
	int alloc(const Context &ctx, const ExporterHandle &exporter, uint64_t size)
	{
		peerbuf_buffer_t id = 0;
		const int rc = peerbuf_alloc(ctx.get(), exporter.id(), size, &id);
		if (!rc)
			static_cast<Handle &>(*this) = Handle(ctx.get(), id);
		return rc;
	}
};

/** A registration; its keys are valid until it ends. */
class Registration : public Handle<peerbuf_deregister>
{
public:
	using Handle::Handle;
	int make(const Context &ctx, const peerbuf_source &source,
		 const std::vector<peerbuf_importer_t> &importers, uint32_t access,
		 const peerbuf_policy *policy = nullptr)
	{
		peerbuf_reg_t id = 0;
		const int rc = peerbuf_register(ctx.get(), &source, importers.data(),
						importers.size(), access, policy, &id);
		if (!rc)
			static_cast<Handle &>(*this) = Handle(ctx.get(), id);
		return rc;
	}
};

/**
 * Inside a gate for as long as it lives, if it says so; made around one call into the provider.
 *
 *     if (const Inside inside(gate); inside)
 *             n = fi_cq_read(cq, entries, count);
 */
class Inside
{
public:
	/** @param gate of peerbuf_importer_gate; null where nothing has to be bracketed. */
	explicit Inside(peerbuf_gate *gate)
	    : gate_(gate),
	      entered_(!gate || !peerbuf_progress_enter(gate))
	{
	}
	~Inside()
	{
		if (gate_ && entered_)
			peerbuf_progress_leave(gate_);
	}
	Inside(const Inside &) = delete;
	Inside &operator=(const Inside &) = delete;
	/** False: the gate is closed; make progress and come again. */
	explicit operator bool() const { return entered_; }

private:
	peerbuf_gate *gate_;
	const bool entered_;
};

/** The application's own access to a buffer's address: the memory stays for as long as it lives. */
class CpuAccess
{
public:
	/** @return what peerbuf_cpu_begin returned. An earlier access ends. */
	int begin(const Context &ctx, peerbuf_buffer_t buffer, uint64_t timeoutNs)
	{
		end();
		const int rc = peerbuf_cpu_begin(ctx.get(), buffer, timeoutNs);
		if (!rc) {
			ctx_ = ctx.get();
			buffer_ = buffer;
		}
		return rc;
	}
	void end()
	{
		if (ctx_)
			peerbuf_cpu_end(std::exchange(ctx_, nullptr), buffer_);
	}
	CpuAccess() = default;
	~CpuAccess() { end(); }
	CpuAccess(const CpuAccess &) = delete;
	CpuAccess &operator=(const CpuAccess &) = delete;

private:
	peerbuf_context *ctx_ = nullptr;
	peerbuf_buffer_t buffer_ = 0;
};

} // namespace peerbuf

#endif
