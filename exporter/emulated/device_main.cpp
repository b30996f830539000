// SPDX-License-Identifier: BSD-3-Clause
/*
 * peerbuf-emulated-device: an accelerator as a process. Prints nothing unless asked to; ends with
 * 0 when it was told to or its only client left, 1 when something failed, 2 on a usage error.
 */
#include <cstdio>
#include <deque>
#include <fcntl.h>
#include <map>
#include <signal.h>
#include <sys/socket.h>

#include <CLI/CLI.hpp>

#include "device.h"

namespace
{

using namespace peerbuf;
using namespace peerbuf::emulated;

constexpr int usageError = 2;

/** Options wants a host to complain to. */
std::string complaint;
void takeComplaint(const peerbuf_host *, uint32_t, const char *message)
{
	complaint = message;
}

bool isSeqpacket(int fd)
{
	int type = 0;
	socklen_t size = sizeof(type);
	return ::getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_SEQPACKET;
}

int usage(const std::string &why)
{
	fprintf(stderr, "peerbuf-emulated-device: %s (--help lists the options)\n", why.c_str());
	return usageError;
}

int run(int argc, char **argv)
{
	CLI::App app("An emulated accelerator for peerbuf: a process with memory of its own.",
		     "peerbuf-emulated-device");
	Device::Options options;
	std::map<std::string, std::string> given;
	app.add_option("--socket", options.socketPath, "listen on this UNIX socket");
	app.add_option("--fd", options.clientFd,
		       "serve the client behind this socket and end with it");
	app.add_option("--ready-fd", options.readyFd,
		       "write a newline here, and close it, once clients can connect");
	app.add_flag("--verbose", options.verbose, "say on standard error what happens");
	for (const SettingKey &key : settingKeys())
		app.add_option(std::string("--") + key.key, given[key.key], key.meaning);
	try {
		app.parse(argc, argv);
	} catch (const CLI::CallForHelp &e) {
		return app.exit(e);
	} catch (const CLI::ParseError &e) {
		return usage(e.what());
	}

	std::vector<peerbuf_param> params;
	for (const auto &[key, value] : given)
		if (app.count("--" + key))
			params.push_back({key.c_str(), value.c_str()});
	peerbuf_host host = {};
	host.struct_size = sizeof(host);
	host.fail = takeComplaint;
	plugin::Options reader(&host, params.data(), params.size());
	options.settings = readSettings(reader);
	if (reader.finish() != 0)
		return usage(complaint);
	if (options.socketPath.empty() == (options.clientFd < 0))
		return usage("exactly one of --socket PATH and --fd N");
	if (options.clientFd >= 0 && !isSeqpacket(options.clientFd))
		return usage(plugin::text("--fd ", options.clientFd, ": not a SEQPACKET socket"));
	if (options.readyFd >= 0 && ::fcntl(options.readyFd, F_GETFD) < 0)
		return usage(plugin::text("--ready-fd ", options.readyFd, ": not open"));
	for (const int fd : {options.clientFd, options.readyFd})
		if (fd >= 0)
			::fcntl(fd, F_SETFD, FD_CLOEXEC);
	if (::signal(SIGPIPE, SIG_IGN) == SIG_ERR)
		return 1;

	std::string why;
	const std::unique_ptr<Device> device = Device::create(options, &why);
	if (!device) {
		fprintf(stderr, "peerbuf-emulated-device: %s\n", why.c_str());
		return 1;
	}
	return device->run();
}

} // namespace

int main(int argc, char **argv)
{
	try {
		return run(argc, argv);
	} catch (const std::exception &e) {
		fprintf(stderr, "peerbuf-emulated-device: %s\n", e.what());
		return 1;
	}
}
