// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_TOOLS_SOCKET_PLACE_H
#define PEERBUF_TOOLS_SOCKET_PLACE_H

#include <string>

#include "unique_fd.h"

namespace peerbuf::tools
{

/**
 * A place for a listening UNIX socket that leaves nothing behind, not even when all of us are
 * killed: once somebody listens there, the name is taken away and the socket is reached through a
 * descriptor, as /proc/self/fd/N.
 */
class SocketPlace
{
public:
	SocketPlace() = default;
	~SocketPlace() { vanish(); }
	SocketPlace(const SocketPlace &) = delete;
	SocketPlace &operator=(const SocketPlace &) = delete;

	/** A new folder of ours. @return "" or why not. */
	std::string create();
	const std::string &path() const { return path_; }
	/** Somebody listens: take hold of the socket and remove its name. @return "" or why not. */
	std::string hold();
	/** Of O_PATH. */
	int fd() const { return socket_.get(); }
	void release() { socket_.reset(); }

private:
	void vanish();

	std::string folder_;
	std::string path_;
	UniqueFd socket_;
};

} // namespace peerbuf::tools

#endif
