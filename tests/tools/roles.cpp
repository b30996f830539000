// SPDX-License-Identifier: BSD-3-Clause
#include "roles.h"

#include <cstdlib>
#include <cstring>
#include <string>

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "tools/peerbuf/demo.h"
#include "tools/peerbuf/demo_peer.h"
#include "tools/peerbuf/demo_protocol.h"
#include "tools/peerbuf/demo_target.h"

namespace peerbuf::test
{

namespace
{

using namespace peerbuf::tools;

bool plays(const char *part)
{
	const char *role = getenv(roleVariable);
	return role && strcmp(role, part) == 0;
}

/** Until the other end is closed. */
void waitForTheEnd(int fd)
{
	char buffer[4096];
	while (recv(fd, buffer, sizeof(buffer), 0) > 0) {
	}
}

int playBadTarget()
{
	const auto say = [](const std::string &text) {
		send(demo::parentFd, text.data(), text.size(), MSG_NOSIGNAL);
	};
	if (plays("target says no JSON"))
		say("\x01\x02 garbage");
	else if (plays("target says an unknown type"))
		say(R"({"type":"dance"})");
	else if (plays("target says a wrong field"))
		say(R"({"type":"progress","blocks":-1,"bytes":0,"bad":0})");
	else if (plays("target says too much"))
		say(std::string(70000, 'x'));
	else if (plays("target leaves without a word"))
		return 0;
	else if (plays("target leaves with 7"))
		return 7;
	if (plays("target reports and fails")) {
		say(demo::TargetResult().json().dump());
		return 1;
	}
	waitForTheEnd(demo::parentFd);
	return 0;
}

/**
 * Both roles report, without having done anything, that all went well but for what
 * "reports ..." says.
 */
int playReport(bool target)
{
	char start[4096];
	if (recv(demo::parentFd, start, sizeof(start), 0) <= 0)
		return 1;
	demo::TargetResult good;
	good.flows = {{"Pinned", 1}};
	good.pinFallbacks = good.quotaRefused = good.revokedAccessFailed = 1;
	good.deviceChecked = plays("reports an unchecked block") ? 6 : 7;
	good.ledgerBytesAfter = plays("reports a charge") ? 4096 : 0;
	good.fdsLeaked = plays("reports a leak") ? 1 : 0;
	good.moves.moves = plays("reports no move") ? 0 : 3;
	good.moves.keyChanges = plays("reports a changed key") ? 1 : 0;
	if (plays("reports a quota not refused"))
		good.quotaRefused = 0;
	if (plays("reports an access after the revoke"))
		good.revokedAccessFailed = 0;
	if (plays("reports a fault"))
		good.faults = {"something"};
	demo::PeerResult peer;
	peer.blocksVerified = plays("reports no block") ? 0 : 7;
	peer.deviceChecked = 7;
	peer.blocksLost = plays("reports a lost block") ? 1 : 0;
	peer.blocksStale = plays("reports a stale block") ? 1 : 0;
	const std::string text = target ? good.json().dump() : peer.json().dump();
	return send(demo::parentFd, text.data(), text.size(), MSG_NOSIGNAL) > 0 ? 0 : 1;
}

/** A device that is ready and then answers whoever connects with garbage. */
int playBadDevice(int argc, char **argv)
{
	std::string path;
	int ready = -1;
	for (int i = 1; i + 1 < argc; i++) {
		if (strcmp(argv[i], "--socket") == 0)
			path = argv[i + 1];
		if (strcmp(argv[i], "--ready-fd") == 0)
			ready = atoi(argv[i + 1]);
	}
	if (plays("device leaves at once"))
		return 1;
	sockaddr_un address = {};
	address.sun_family = AF_UNIX;
	path.copy(address.sun_path, sizeof(address.sun_path) - 1);
	const int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (bind(listener, reinterpret_cast<sockaddr *>(&address), sizeof(address)) < 0 ||
	    listen(listener, 8) < 0 || write(ready, "\n", 1) != 1)
		return 1;
	close(ready);
	for (;;) {
		const int client = accept(listener, nullptr, nullptr);
		if (client < 0)
			return 1;
		send(client, "garbage", 7, MSG_NOSIGNAL);
		waitForTheEnd(client);
		close(client);
	}
}

} // namespace

int playRole(int argc, char **argv)
{
	const std::string first = argc > 1 ? argv[1] : "";
	const char *role = getenv(roleVariable);
	const bool reports = role && strncmp(role, "reports", 7) == 0;
	if (reports && (first == demoTargetCommand || first == demoPeerCommand))
		return playReport(first == demoTargetCommand);
	if (first == demoTargetCommand)
		return getenv(roleVariable) && !plays("device says garbage") ? playBadTarget()
									     : runDemoTarget();
	if (first == demoPeerCommand)
		return runDemoPeer();
	if (first == "--socket")
		return playBadDevice(argc, argv);
	return -1;
}

} // namespace peerbuf::test
