// SPDX-License-Identifier: BSD-3-Clause
/*
 * The command peerbuf: what it is asked to do, and what to say when that cannot be.
 */
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include <peerbuf/peerbuf.h>

#include "demo.h"
#include "demo_peer.h"
#include "demo_target.h"
#include "exit_code.h"
#include "list.h"
#include "matrix.h"
#include "policy_option.h"
#include "words.h"

namespace
{

using namespace peerbuf::tools;

/** Options and commands of @p app that people may use. */
std::vector<std::string> whatThereIs(const CLI::App &app)
{
	std::vector<std::string> names;
	for (const CLI::App *command : app.get_subcommands([](const CLI::App *) { return true; }))
		if (!command->get_group().empty())
			names.push_back(command->get_name());
	for (const CLI::Option *option : app.get_options())
		names.push_back(option->get_name(false, true));
	return names;
}

int usage(const CLI::App &app, const std::string &why)
{
	const CLI::App *where = &app;
	std::string name = app.get_name();
	const auto parsed = app.get_subcommands();
	if (!parsed.empty()) {
		where = parsed.front();
		name += " " + where->get_name();
	}
	fprintf(stderr, "%s: %s\nthere are: %s\n", name.c_str(), why.c_str(),
		joined(whatThereIs(*where)).c_str());
	return exitUsage;
}

/** A transform of CLI11: the number with its suffix, or what is wrong. */
std::string bytesValidator(std::string &text)
{
	const auto bytes = parseBytes(text);
	if (!bytes)
		return "'" + text + "': a whole number of bytes; K, M, G or T may follow";
	text = std::to_string(*bytes);
	return "";
}

int run(int argc, char **argv)
{
	CLI::App app("One device's memory used in place by another, shown and explained.",
		     "peerbuf");
	app.require_subcommand(1);
	app.set_version_flag("--version", peerbuf_version());

	CLI::App *list = app.add_subcommand("list", "exporters, importers and providers found");
	bool listJson = false;
	list->add_flag("--json", listJson, "one JSON object on standard output");

	CLI::App *matrix = app.add_subcommand(
		"matrix", "every exporter with every importer: the flow, and why not a better one");
	MatrixOptions matrixOptions;
	matrix->add_flag("--json", matrixOptions.json, "one JSON object on standard output");
	matrix->add_option("--exporter", matrixOptions.exporters,
			   "NAME[:key=value,...], again for more (all there are)")
		->expected(1)
		->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
	matrix->add_option("--importer", matrixOptions.importers,
			   "NAME[:key=value,...]; for fabric also provider=NAME, for verbs "
			   "device=NAME")
		->expected(1)
		->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
	matrix->add_option("--policy", matrixOptions.policy, policyOptionList())
		->expected(1)
		->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);

	CLI::App *demo = app.add_subcommand(
		"demo", "a device, a target and a peer process, real RMA, every byte checked");
	DemoOptions demoOptions;
	uint64_t seed = 0;
	demo->add_flag("--json", demoOptions.json, "one JSON object on standard output");
	demo->add_option("--seconds", demoOptions.seconds, "of traffic (5)")
		->check(CLI::Range(0.0, DemoOptions::longest));
	demo->add_option("--provider", demoOptions.provider,
			 "of libfabric (tcp;ofi_rxm, or tcp from libfabric 2.0 on)");
	CLI::Option *seedOption = demo->add_option(
		"--seed", seed,
		"of offsets, lengths and bytes; the same again replays (by chance)");
	demo->add_option("--size", demoOptions.size, "bytes of the region (64M)")
		->transform(CLI::Validator(bytesValidator, "BYTES") &
			    CLI::Range(DemoOptions::leastSize, DemoOptions::mostSize));
	demo->add_flag("!--no-notify", demoOptions.notify,
		       "let the moves tell no importer: blocks are lost, for certain");
	demo->add_flag("--cma", demoOptions.cma,
		       "with shm: let the peer copy by CMA, so that the memory is pinned");
	demo->add_flag("--verbose", demoOptions.verbose, "say on standard error what happens");

	CLI::App *target = app.add_subcommand(demoTargetCommand)->group("");
	CLI::App *peer = app.add_subcommand(demoPeerCommand)->group("");
	for (CLI::App *role : {target, peer})
		role->add_flag("--cma", demoOptions.cma);

	try {
		app.parse(argc, argv);
	} catch (const CLI::CallForHelp &e) {
		return app.exit(e);
	} catch (const CLI::CallForAllHelp &e) {
		return app.exit(e);
	} catch (const CLI::CallForVersion &e) {
		return app.exit(e);
	} catch (const CLI::ParseError &e) {
		/* what is missing is asked for before what is not known is complained about */
		const auto unknown = app.remaining();
		if (app.get_subcommands().empty() && !unknown.empty())
			return usage(app,
				     "there is no command or option '" + unknown.front() + "'");
		return usage(app, e.what());
	}
	if (*seedOption)
		demoOptions.seed = seed;
	/* shm's CMA copies past any gate; it is read at the first fi_getinfo, and by children */
	const char *disableCma = demoOptions.cma ? "0" : "1";
	setenv("FI_SHM_DISABLE_CMA", disableCma, 1); // NOLINT(concurrency-mt-unsafe): no thread yet
	if (*list)
		return runList(listJson);
	if (*matrix)
		return runMatrix(matrixOptions);
	if (*target)
		return runDemoTarget();
	if (*peer)
		return runDemoPeer();
	return runDemo(demoOptions);
}

} // namespace

int main(int argc, char **argv)
{
	try {
		return run(argc, argv);
	} catch (const std::exception &e) {
		fprintf(stderr, "peerbuf: %s\n", e.what());
		return exitBad;
	}
}
