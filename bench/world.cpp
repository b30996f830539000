// SPDX-License-Identifier: BSD-3-Clause
#include "world.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <set>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <peerbuf/fabric.h>

#include "tools/peerbuf/exit_code.h"
#include "tools/peerbuf/fabric_side.h"
#include "tools/peerbuf/words.h"

namespace peerbuf::bench
{

using tools::errnoWord;

namespace
{

constexpr uint32_t readWrite =
	PEERBUF_ACCESS_LOCAL_WRITE | PEERBUF_ACCESS_REMOTE_READ | PEERBUF_ACCESS_REMOTE_WRITE;

std::set<pid_t> childrenNow()
{
	std::set<pid_t> pids;
	std::ifstream in("/proc/thread-self/children");
	for (pid_t pid = 0; in >> pid;)
		pids.insert(pid);
	return pids;
}

/** Whether this build's emulated device knows it. */
bool hasOption(const Context &ctx, const std::string &name)
{
	auto info = sized<peerbuf_plugin_info>();
	for (size_t i = 0; peerbuf_query_plugin(ctx.get(), i, &info) == 0; i++) {
		if (info.kind != PEERBUF_PLUGIN_EXPORTER || std::string("emulated") != info.name)
			continue;
		for (const char *const *option = info.options; option && *option; option++)
			if (std::string(*option).rfind(name + ":", 0) == 0)
				return true;
	}
	return false;
}

} // namespace

uint64_t nowNs()
{
	timespec now = {};
	clock_gettime(CLOCK_MONOTONIC, &now);
	return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 +
	       static_cast<uint64_t>(now.tv_nsec);
}

Failure brokenCall(const std::string &what)
{
	return {tools::exitBad, what + ": " + lastError().what};
}

bool World::open(uint64_t hbm, bool huge, Failure *ret_failure)
{
	const auto broken = [&](const char *what) {
		*ret_failure = brokenCall(what);
		return false;
	};
	const auto missing = [&](const std::string &why) {
		*ret_failure = {tools::exitMissing, why};
		return false;
	};
	if (ctx.open())
		return broken("peerbuf_open");
	for (const auto &[kind, name] : {std::pair(PEERBUF_PLUGIN_EXPORTER, "emulated"),
					 std::pair(PEERBUF_PLUGIN_IMPORTER, "fabric")})
		if (!tools::findPlugin(ctx, kind, name, ret_failure))
			return false;

	const std::set<pid_t> before = childrenNow();
	const std::string size = std::to_string(hbm);
	std::vector<peerbuf_param> params = {{"profile", "moves"}, {"hbm", size.c_str()}};
	if (huge && hasOption(ctx, "layout"))
		params.push_back({"layout", "contiguous"}); /* else no piece is large enough */
	if (exporter.open(ctx, "emulated", params))
		return broken("starting the emulated device");
	for (const pid_t pid : childrenNow())
		if (!before.count(pid))
			devicePid = pid;
	const void *ops = nullptr;
	if (peerbuf_exporter_open_ops(ctx.get(), exporter.id(), PEERBUF_EXPORTER_TEST_OPS, &ops,
				      &deviceObject))
		return broken("the device's operations for tests");
	device = static_cast<const peerbuf_exporter_test_ops *>(ops);

	tools::RmaOptions options;
	options.provider = tools::defaultProvider();
	std::string why;
	target = tools::RmaEndpoint::create(options, why);
	if (!target)
		return missing(why);
	auto objects = sized<peerbuf_fabric_objects>();
	objects.flags = PEERBUF_FABRIC_BRACKETED;
	objects.domain = target->domain();
	objects.info = target->info();
	objects.ep = target->ep();
	if (importer.open(ctx, "fabric", {}, &objects))
		return broken("opening the fabric importer");
	if (peerbuf_importer_open_ops(ctx.get(), importer.id(), PEERBUF_IMPORTER_TEST_OPS, &ops,
				      &nicObject))
		return broken("the importer's operations for tests");
	nic = static_cast<const peerbuf_importer_test_ops *>(ops);
	if (peerbuf_importer_gate(ctx.get(), importer.id(), &gate))
		return broken("the importer's gate");
	return true;
}

bool World::alloc(uint64_t size, Held *ret_held, Failure *ret_failure)
{
	if (ret_held->buffer.alloc(ctx, exporter, size) ||
	    peerbuf_query_buffer(ctx.get(), ret_held->buffer.id(), &ret_held->info)) {
		*ret_failure = brokenCall("allocating " + tools::bytesWords(size));
		return false;
	}
	return true;
}

bool World::registerWith(Held *held, Failure *ret_failure)
{
	auto source = sized<peerbuf_source>();
	source.fd = -1;
	source.buffer = held->buffer.id();
	source.length = held->info.size;
	if (held->reg.make(ctx, source, {importer.id()}, readWrite) ||
	    peerbuf_query_reg_importer(ctx.get(), held->reg.id(), 0, &held->region)) {
		*ret_failure = brokenCall("registering " + tools::bytesWords(held->info.size));
		return false;
	}
	if (held->region.flow == PEERBUF_FLOW_MOVABLE)
		return true;
	std::string why = "the region is " + std::string(peerbuf_flow_name(held->region.flow)) +
			  ", not Movable";
	for (const peerbuf_refusal &refusal : tools::refusalsOf(ctx, held->reg.id()))
		why += "; " + tools::refusalText(refusal);
	*ret_failure = {tools::exitBad, why};
	return false;
}

int World::poll(tools::RmaCompletion *ret_completion)
{
	if (peerbuf_progress_enter(gate))
		return 0;
	const int rc = target->pollOnce(ret_completion);
	peerbuf_progress_leave(gate);
	return rc;
}

uint64_t World::progress()
{
	uint64_t resumed = 0;
	if (ctx.progress() == 0)
		return 0;
	peerbuf_event event = {};
	while (ctx.nextEvent(event) == 1)
		if (event.type == PEERBUF_EVENT_RESUMED)
			resumed += event.length;
	return resumed;
}

bool populate(void *at, uint64_t length, Failure *ret_failure)
{
	if (::madvise(at, length, MADV_POPULATE_WRITE) == 0)
		return true;
	*ret_failure = {tools::exitMissing, "madvise(MADV_POPULATE_WRITE) of " +
						    tools::bytesWords(length) + ": " +
						    errnoWord(errno)};
	return false;
}

Switches::Switches(pid_t process)
    : status_(::open(("/proc/" + std::to_string(process) + "/status").c_str(),
		     O_RDONLY | O_CLOEXEC))
{
}

uint64_t Switches::involuntary() const
{
	char text[4096];
	const ssize_t n = ::pread(status_.get(), text, sizeof(text) - 1, 0);
	if (n <= 0)
		return 0;
	text[n] = '\0';
	constexpr const char *key = "nonvoluntary_ctxt_switches:";
	const char *at = ::strstr(text, key);
	return at ? ::strtoull(at + ::strlen(key), nullptr, 10) : 0;
}

uint64_t ownSwitches()
{
	rusage usage = {};
	return ::getrusage(RUSAGE_THREAD, &usage) == 0 ? static_cast<uint64_t>(usage.ru_nivcsw) : 0;
}

} // namespace peerbuf::bench
