// SPDX-License-Identifier: BSD-3-Clause
/**
 * @file wire.h
 * What the emulated device and its clients say to each other, over a UNIX SEQPACKET socket.
 *
 * One message is one packet of exactly sizeof(Message). A client asks (Request) and gets one Reply
 * with the same serial, or says something that has none (Ack). The device tells (Event). Bulk data
 * travels in a sealed memfd beside the message. Anything else is garbage: whoever receives it
 * closes the connection.
 */
#ifndef PEERBUF_EXPORTER_EMULATED_WIRE_H
#define PEERBUF_EXPORTER_EMULATED_WIRE_H

#include <cstdint>
#include <string>
#include <vector>

#include <peerbuf/plugin_support.hpp>
#include <peerbuf/testing.h>
#include <peerbuf/types.h>

#include "frames.h"
#include "settings.h"
#include "unique_fd.h"

namespace peerbuf::emulated
{

inline constexpr uint32_t messageMagic = 0x31454250; /* "PBE1" */
inline constexpr uint16_t protocolVersion = 1;

enum class Kind : uint16_t { Request = 1, Reply = 2, Event = 3 };

enum class Op : uint16_t {
	/* requests */
	Hello = 1,
	Offer,
	Alloc,
	Get, /* + fd */
	Drop,
	Layout,
	Attach,
	Detach,
	Pin,
	Unpin,
	Map,
	Unmap,
	ExportFd, /* reply + fd */
	ReleaseFd,
	Read,  /* + fd */
	Write, /* + fd */
	Revoke,
	Restore,
	Remove,
	Fault,
	Stats,
	Move,
	MoveStatus,
	Pool,
	SetLimits,
	TenantStatus,
	Ack, /* no reply */
	/* events */
	Invalidate = 64,
	Placed,
	Moved,
};

inline constexpr size_t runsPerMessage = 56;
/** Bytes that one Read or Write moves: bounds how long the device is busy with one request. */
inline constexpr uint64_t bulkChunk = 1 << 20;

struct HelloBody {
	char tenant[PEERBUF_NAME_LEN];
	char device[PEERBUF_NAME_LEN]; /* reply: its name */
	uint64_t deviceId;	       /* reply */
	Settings settings;	       /* reply */
};

struct BufferBody { /* Alloc, Get, Layout: what a buffer is and where it lies */
	uint64_t buffer;
	uint64_t size;
	uint64_t generation;
	uint32_t revoked;
	uint32_t first; /* of the runs in this message */
	uint32_t count;
	uint32_t total; /* 0: it lies nowhere, its memory was reused after a revoke */
	Run runs[runsPerMessage];
};

struct AttachBody {
	uint64_t buffer;
	uint64_t attachment; /* reply */
	uint64_t offset;
	uint64_t length;
	uint64_t generation; /* reply */
	uint32_t allowPeer2peer;
	uint32_t invalidation;
	uint32_t variant;
	uint32_t access;
	uint32_t handleKind;
	uint32_t placement; /* reply */
	uint32_t placements;
	uint32_t invalidateScope;
	uint64_t cookie; /* reply; not 0: acknowledge once the old place is no longer used */
	char importer[PEERBUF_NAME_LEN];
};

struct RangeBody { /* Map, Unmap, ExportFd, ReleaseFd, Pin, Unpin, Detach, Read, Write, Drop */
	uint64_t object; /* attachment or buffer */
	uint64_t token;	 /* mapping, export; count of Drop */
	uint64_t offset;
	uint64_t length;
	uint64_t generation; /* reply */
	uint32_t placement;  /* reply */
	uint32_t variant;
};

struct OfferBody {
	uint64_t buffer;
	uint64_t windowUsed; /* reply */
};

struct FaultBody {
	char step[PEERBUF_NAME_LEN];
	uint32_t skip;
	uint32_t count;
	int32_t err;
	uint32_t reserved;
	uint64_t delayNs;
};

struct NoticeBody { /* Invalidate, Placed, Ack */
	uint64_t buffer;
	uint64_t cookie;
	uint64_t offset;
	uint64_t length;
	uint64_t generation;
	uint32_t reason;
	int32_t status;
	uint64_t expectedNs; /* Invalidate for a move */
};

inline constexpr size_t movedRuns = 56;

struct MovedBody { /* Moved: a slice may be used again; sent in pieces that fit a message */
	uint64_t buffer;
	uint64_t offset; /* of the runs in this message */
	uint64_t sliceOffset;
	uint64_t sliceLength;
	uint64_t generation;
	uint32_t aborted; /* it stayed where it was: no runs */
	uint32_t last;	  /* of the messages about this slice */
	uint32_t placement;
	uint32_t count;
	Run runs[movedRuns];
};

struct MoveBody {
	uint64_t buffer;
	peerbuf_move_request request;
};

struct PoolBody {
	uint32_t placement;
	uint32_t state;
};

struct TenantBody { /* SetLimits, TenantStatus */
	char name[PEERBUF_NAME_LEN];
	peerbuf_tenant_limits limits;
};

struct FailureBody {
	uint32_t errc;
	char why[512];
};

union Body {
	uint8_t raw[992]; /* first, so that {} clears all of it */
	HelloBody hello;
	BufferBody buffer;
	AttachBody attach;
	RangeBody range;
	OfferBody offer;
	FaultBody fault;
	NoticeBody notice;
	MovedBody moved;
	MoveBody move;
	peerbuf_move_status moveStatus;
	PoolBody pool;
	TenantBody tenant;
	peerbuf_tenant_status tenantStatus;
	FailureBody failure;
	peerbuf_exporter_stats stats;
};

struct Message {
	uint32_t magic;
	uint16_t version;
	uint16_t op;
	uint16_t kind;
	uint16_t reserved;
	uint32_t size;
	uint64_t serial; /* of the request; 0 in events */
	int32_t status;	 /* reply: 0, or negative errno with body.failure */
	uint32_t reserved2;
	Body body;
};
static_assert(sizeof(Message) == 1024);

/** A cleared message. */
Message makeMessage(Kind kind, Op op, uint64_t serial = 0);

/** @return NULL, or what is wrong with the header. */
const char *headerProblem(const Message &message);

const char *opName(uint16_t op);

using plugin::errnoText;

/**
 * Send without blocking.
 * @param fd travels along; -1: none.
 * @return 0, -EAGAIN, or the error of sendmsg.
 */
int sendMessage(int socket, const Message &message, int fd);

/**
 * Receive without blocking. Descriptors that came along are in @p ret_fds also when the message is
 * bad, so that none leaks.
 * @return 1; 0: the other side is gone; -EAGAIN; -EBADMSG: a packet of the wrong size; -EMFILE: a
 *   descriptor that came along was lost because this process has no room for it.
 */
int receiveMessage(int socket, Message *ret_message, std::vector<UniqueFd> *ret_fds);

/** A memfd of @p size that nobody can shrink under us. @return fd or -errno. */
int makeScratch(const char *name, uint64_t size);
/** Whether @p fd is such a memfd of at least @p size. */
bool isScratch(int fd, uint64_t size);

/**
 * What the first bytes of an emulated dma-buf say. It has the buffer's size and identity, and
 * that is all: its other bytes are zero and are not the memory of the buffer. A kernel dma-buf
 * carries its exporter's mmap; a user-space process can only hand out a descriptor of a file, and
 * the file that holds the HBM is not one buffer. So the descriptor names the buffer, and whoever
 * wants its bytes asks the device through get.
 */
struct IdentityMark {
	char magic[16];
	uint64_t deviceId;
	uint64_t allocation;
};
inline constexpr char identityMagic[16] = "peerbuf-dmabuf";

/** @return fd or -errno. */
int makeIdentity(uint64_t size, const IdentityMark &mark);
/** @return false: @p fd is no emulated dma-buf. */
bool readIdentity(int fd, IdentityMark *ret_mark);

} // namespace peerbuf::emulated

#endif
