// SPDX-License-Identifier: BSD-3-Clause
#include "core/base/error.h"

#include <cerrno>
#include <cstring>
#include <initializer_list>
#include <sstream>
#include <utility>

namespace peerbuf
{

namespace
{

/** ENOTSUPP: never meant for user space, yet exporters' attach gives it to RDMA drivers. */
constexpr int KERNEL_ENOTSUPP = 524;

std::string bitsText(uint32_t bits, std::initializer_list<std::pair<uint32_t, const char *>> names)
{
	std::string out;
	uint32_t rest = bits;
	for (const auto &[bit, name] : names) {
		if (!(bits & bit))
			continue;
		out += (out.empty() ? "" : "+") + std::string(name);
		rest &= ~bit;
	}
	if (rest)
		out += (out.empty() ? "" : "+") + hex(rest);
	return out.empty() ? "none" : out;
}

} // namespace

Errc errcFor(int err)
{
	switch (err) {
	case EINVAL:
		return PEERBUF_ERR_INVALID_ARGUMENT;
	case ENOENT:
		return PEERBUF_ERR_NOT_FOUND;
	case EPROTONOSUPPORT:
	case ENOTTY:
		return PEERBUF_ERR_UNSUPPORTED_KERNEL;
	case EOPNOTSUPP:
	case ENOSYS:
		return PEERBUF_ERR_UNSUPPORTED_DRIVER;
	case KERNEL_ENOTSUPP:
		return PEERBUF_ERR_KERNEL_INTERNAL;
	case EFAULT:
		return PEERBUF_ERR_NOT_HOST_MEMORY;
	case ENOSPC:
	case EAGAIN:
		return PEERBUF_ERR_DEVICE_RESOURCES;
	case EDQUOT:
		return PEERBUF_ERR_QUOTA;
	case EMFILE:
	case ENFILE:
		return PEERBUF_ERR_FD_EXHAUSTED;
	case ESTALE:
		return PEERBUF_ERR_STALE;
	case EACCES:
	case EPERM:
		return PEERBUF_ERR_ACCESS;
	case EBUSY:
		return PEERBUF_ERR_BUSY;
	case ENOMEM:
		return PEERBUF_ERR_NO_MEMORY;
	case ENODEV:
	case ENXIO:
		return PEERBUF_ERR_DEVICE_GONE;
	case EPROTO:
		return PEERBUF_ERR_PROTOCOL;
	case ETIMEDOUT:
		return PEERBUF_ERR_TIMEOUT;
	default:
		return PEERBUF_ERR_SYSTEM;
	}
}

std::string errnoText(int err)
{
	const char *name = err == KERNEL_ENOTSUPP ? "ENOTSUPP" : strerrorname_np(err);
	return std::string(name ? name : "errno") + " (" + std::to_string(err) + ")";
}

const char *errcName(uint32_t errc)
{
	switch (errc) {
	case PEERBUF_OK:
		return "OK";
	case PEERBUF_ERR_INVALID_ARGUMENT:
		return "INVALID_ARGUMENT";
	case PEERBUF_ERR_BAD_GEOMETRY:
		return "BAD_GEOMETRY";
	case PEERBUF_ERR_NOT_FOUND:
		return "NOT_FOUND";
	case PEERBUF_ERR_BAD_PLUGIN:
		return "BAD_PLUGIN";
	case PEERBUF_ERR_UNSUPPORTED_KERNEL:
		return "UNSUPPORTED_KERNEL";
	case PEERBUF_ERR_UNSUPPORTED_DRIVER:
		return "UNSUPPORTED_DRIVER";
	case PEERBUF_ERR_KERNEL_INTERNAL:
		return "KERNEL_INTERNAL";
	case PEERBUF_ERR_NOT_HOST_MEMORY:
		return "NOT_HOST_MEMORY";
	case PEERBUF_ERR_PIN_REFUSED:
		return "PIN_REFUSED";
	case PEERBUF_ERR_REVOKE_UNSUPPORTED:
		return "REVOKE_UNSUPPORTED";
	case PEERBUF_ERR_NO_P2P_PATH:
		return "NO_P2P_PATH";
	case PEERBUF_ERR_NOT_P2P_PLACEMENT:
		return "NOT_P2P_PLACEMENT";
	case PEERBUF_ERR_WINDOW_EXHAUSTED:
		return "WINDOW_EXHAUSTED";
	case PEERBUF_ERR_QUOTA:
		return "QUOTA";
	case PEERBUF_ERR_DEVICE_RESOURCES:
		return "DEVICE_RESOURCES";
	case PEERBUF_ERR_DEVICE_LIMIT:
		return "DEVICE_LIMIT";
	case PEERBUF_ERR_FD_EXHAUSTED:
		return "FD_EXHAUSTED";
	case PEERBUF_ERR_STALE:
		return "STALE";
	case PEERBUF_ERR_REVOKED:
		return "REVOKED";
	case PEERBUF_ERR_MISCLASSIFIED:
		return "MISCLASSIFIED";
	case PEERBUF_ERR_ACCESS:
		return "ACCESS";
	case PEERBUF_ERR_BUSY:
		return "BUSY";
	case PEERBUF_ERR_UNTRANSLATED:
		return "UNTRANSLATED";
	case PEERBUF_ERR_FORKED:
		return "FORKED";
	case PEERBUF_ERR_NO_MEMORY:
		return "NO_MEMORY";
	case PEERBUF_ERR_DEVICE_GONE:
		return "DEVICE_GONE";
	case PEERBUF_ERR_PROTOCOL:
		return "PROTOCOL";
	case PEERBUF_ERR_TIMEOUT:
		return "TIMEOUT";
	case PEERBUF_ERR_POLICY:
		return "POLICY";
	case PEERBUF_ERR_SYSTEM:
		return "SYSTEM";
	case PEERBUF_ERR_INTERNAL:
		return "INTERNAL";
	default:
		return "unknown";
	}
}

const char *flowName(uint32_t flow)
{
	switch (flow) {
	case PEERBUF_FLOW_NONE:
		return "none";
	case PEERBUF_FLOW_MOVABLE:
		return "Movable";
	case PEERBUF_FLOW_REVOCABLE:
		return "Revocable";
	case PEERBUF_FLOW_PINNED:
		return "Pinned";
	case PEERBUF_FLOW_STAGED:
		return "Staged";
	case PEERBUF_FLOW_REKEY:
		return "Rekey";
	default:
		return "unknown";
	}
}

const char *howKnownName(uint32_t howKnown)
{
	switch (howKnown) {
	case PEERBUF_KNOWN_NEGOTIATED:
		return "negotiated";
	case PEERBUF_KNOWN_OBSERVED:
		return "observed";
	case PEERBUF_KNOWN_POSSIBLE:
		return "possible";
	default:
		return "unknown";
	}
}

std::string placementText(uint32_t placement)
{
	return bitsText(placement,
			{{PEERBUF_PLACEMENT_DEVICE, "device"}, {PEERBUF_PLACEMENT_HOST, "host"}});
}

std::string variantText(uint32_t variants)
{
	return bitsText(variants, {{PEERBUF_VARIANT_HOST, "host"}, {PEERBUF_VARIANT_PCIE, "pcie"}});
}

std::string handleText(uint32_t handles)
{
	return bitsText(handles, {{PEERBUF_HANDLE_SEGMENTS, "segments"},
				  {PEERBUF_HANDLE_CPU, "cpu"},
				  {PEERBUF_HANDLE_FD, "dma-buf"}});
}

std::string accessText(uint32_t access)
{
	return bitsText(access, {{PEERBUF_ACCESS_LOCAL_WRITE, "local-write"},
				 {PEERBUF_ACCESS_REMOTE_READ, "remote-read"},
				 {PEERBUF_ACCESS_REMOTE_WRITE, "remote-write"},
				 {PEERBUF_ACCESS_REMOTE_ATOMIC, "remote-atomic"},
				 {PEERBUF_ACCESS_RELAXED_ORDERING, "relaxed-ordering"}});
}

std::string hex(uint64_t value)
{
	std::ostringstream out;
	out << "0x" << std::hex << value;
	return out.str();
}

} // namespace peerbuf
