// SPDX-License-Identifier: BSD-3-Clause
#include "socket_place.h"

#include <cerrno>
#include <cstdlib>

#include <fcntl.h>
#include <sys/un.h>

#include "words.h"

namespace peerbuf::tools
{

std::string SocketPlace::create()
{
	constexpr const char *name = "/peerbuf-demo-XXXXXX";
	constexpr const char *file = "/device";
	const char *temporary = secure_getenv("TMPDIR");
	std::string base = temporary && *temporary ? temporary : "/tmp";
	if (base.size() + sizeof("/peerbuf-demo-XXXXXX/device") > sizeof(sockaddr_un::sun_path))
		base = "/tmp"; /* the name of a socket is short */
	std::string folder = base + name;
	if (!mkdtemp(folder.data()))
		return folder + ": " + errnoWord(errno);
	folder_ = folder;
	path_ = folder + file;
	return "";
}

std::string SocketPlace::hold()
{
	socket_ = UniqueFd(::open(path_.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
	std::string why = socket_ ? "" : path_ + ": " + errnoWord(errno);
	vanish();
	return why;
}

void SocketPlace::vanish()
{
	if (folder_.empty())
		return;
	::unlink(path_.c_str());
	::rmdir(folder_.c_str());
	folder_.clear();
}

} // namespace peerbuf::tools
