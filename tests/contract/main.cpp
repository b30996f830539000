// SPDX-License-Identifier: BSD-3-Clause
/*
 * The contract suite: what every exporter and importer promises, checked through the public
 * interface alone. Plugin authors run it against their own:
 *
 *     peerbuf_contract_suite --exporter mine --exporter mine:key=value --importer emulated
 */
#include <cstring>
#include <iostream>
#include <set>

#include <gtest/gtest.h>

#include "fabric_peer.h"
#include "pair_test.h"

namespace
{

using namespace peerbuf;
using contract::Pair;
using test::PluginSpec;

constexpr int exit_usage = 2;

const char usage[] =
	"usage: peerbuf_contract_suite [--exporter SPEC]... [--importer SPEC]... [--gtest_...]\n"
	"  SPEC is NAME[:key=value[,key=value...]]\n"
	"  importer fabric takes provider=NAME, the provider of the domain the suite makes for "
	"it,\n"
	"  and bracketed=yes, the suite's calls into it go through the importer's gate\n"
	"  importer verbs takes device=NAME, the RDMA device whose objects the suite makes for "
	"it;\n"
	"  the peer is a pair of RC queue pairs on it\n"
	"  PEERBUF_TEST_SEED=N in the environment replays every random choice; default 1\n"
	"  without --exporter: every variant of the emulated exporter\n"
	"  without --importer: every variant of the emulated importer, and fabric with the\n"
	"  providers there are\n";

/* Together they have every row and column of the table, and each gate before it. */
const char *const default_exporters[] = {
	// with granules larger than a page, so that a mapping begins before its region
	"emulated:profile=static,granularity=64K",
	"emulated:profile=moves",
	"emulated:profile=revokes",
	"emulated:profile=nopin",
	"emulated:profile=moves,placements=host,hbm=0,host=64M",
};
const char *const narrow_exporters[] = {
	"emulated:profile=static,peer2peer=required",
	"emulated:profile=moves,placements=device+host",
	// a window of 4 MiB with a sixty-fourth of 36 MiB kept back, over 16 MiB of memory
	"emulated:profile=static,hbm=16M,window=4M,window_reserve=576K",
};
const char *const default_importers[] = {
	"emulated:profile=refault",
	"emulated:profile=revocable",
	"emulated:profile=neither,max_length=8M",
	"emulated:profile=refault,scope=whole",
	"emulated:profile=revocable,peer2peer=no",
};

[[noreturn]] void refuse(const std::string &why)
{
	std::cerr << "peerbuf_contract_suite: " << why << "\n" << usage;
	exit(exit_usage); // NOLINT(concurrency-mt-unsafe): no other thread exists yet
}

/** Take our options out of the command line. */
void parse(int *argc, char **argv, std::vector<PluginSpec> *exporters,
	   std::vector<PluginSpec> *importers)
{
	int kept = 1;
	for (int i = 1; i < *argc; i++) {
		const bool exporter = strcmp(argv[i], "--exporter") == 0;
		const bool importer = strcmp(argv[i], "--importer") == 0;
		if (!exporter && !importer) {
			argv[kept++] = argv[i];
			continue;
		}
		if (i + 1 == *argc)
			refuse(std::string(argv[i]) + " needs a SPEC");
		std::string why;
		const auto spec = PluginSpec::parse(argv[++i], &why);
		if (!spec)
			refuse(why);
		(exporter ? exporters : importers)->push_back(*spec);
	}
	*argc = kept;
	argv[kept] = nullptr;
}

/** All that is installed, for the message about a plugin that is not. */
std::string pluginsThere(peerbuf_context *ctx)
{
	std::string list;
	for (size_t i = 0;; i++) {
		peerbuf_plugin_info info = {};
		info.struct_size = sizeof(info);
		if (peerbuf_query_plugin(ctx, i, &info) < 0)
			return list;
		list += std::string("\n  ") +
			(info.kind == PEERBUF_PLUGIN_EXPORTER ? "exporter " : "importer ") +
			info.name + (info.err == 0 ? "" : std::string(": ") + info.why);
	}
}

/** Every provider as it is, and once more bracketed by the gate where it can follow moves then. */
std::vector<PluginSpec> fabricSpecs(const std::vector<std::string> &providers)
{
	std::vector<PluginSpec> specs;
	for (const std::string &provider : providers) {
		const PluginSpec plain = {"fabric", {{"provider", provider}}};
		specs.push_back(plain);
		if (provider.compare(0, 3, "tcp") == 0)
			specs.push_back(plain.with("bracketed", "yes"));
	}
	return specs;
}

/**
 * Open every device once, so that the tests can be listed by what the devices offer. The last
 * @p n_narrow exporters are there for one property each.
 */
void survey(const std::vector<PluginSpec> &exporters, size_t n_narrow,
	    const std::vector<PluginSpec> &importers, const std::vector<std::string> &providers)
{
	contract::World world;
	if (!world.ctx())
		refuse("peerbuf_open: " + test::LastError::take().text());
	std::vector<const contract::Exporter *> open_exporters;
	std::vector<const contract::Importer *> open_importers;
	std::string why;
	for (const PluginSpec &spec : exporters) {
		const contract::Exporter *opened = world.tryExporter(spec, &why);
		if (!opened)
			refuse("exporter " + spec.text() + ": " + why +
			       "\nplugins there are:" + pluginsThere(world.ctx()));
		open_exporters.push_back(opened);
	}
	for (const PluginSpec &spec : importers) {
		const contract::Importer *opened = world.tryImporter(spec, &why);
		if (!opened)
			refuse("importer " + spec.text() + ": " + why +
			       "\nplugins there are:" + pluginsThere(world.ctx()));
		open_importers.push_back(opened);
	}
	for (const PluginSpec &spec : fabricSpecs(providers)) {
		const contract::Importer *opened = world.tryImporter(spec, &why);
		if (opened)
			open_importers.push_back(opened);
		else
			std::cout << "left out: importer " << spec.text() << ": " << why << "\n";
	}

	std::set<std::string> labels;
	contract::Request request;
	request.access = contract::usual_access;
	for (size_t i = 0; i < open_exporters.size(); i++) {
		const contract::Exporter *exporter = open_exporters[i];
		const bool narrow = i + n_narrow >= open_exporters.size();
		for (const contract::Importer *importer : open_importers) {
			Pair pair;
			pair.exporter = exporter->spec;
			pair.importer = importer->spec;
			pair.exporter_offer = exporter->offer;
			pair.importer_offer = importer->offer;
			pair.verdict = contract::judge(exporter->offer, importer->offer, request);
			pair.narrow = narrow;
			if (!labels.insert(pair.label()).second)
				refuse("two pairs would be called " + pair.label());
			contract::bench().pairs.push_back(pair);
		}
		if (!narrow)
			contract::bench().exporters.push_back(exporter->spec);
	}
	for (const contract::Importer *importer : open_importers)
		contract::bench().importers.push_back(importer->spec);
}

} // namespace

int main(int argc, char **argv)
{
	std::vector<PluginSpec> exporters;
	std::vector<PluginSpec> importers;
	parse(&argc, argv, &exporters, &importers);

	std::string why;
	std::vector<std::string> providers;
	size_t n_narrow = 0;
	if (exporters.empty()) {
		for (const char *text : default_exporters)
			exporters.push_back(*PluginSpec::parse(text, &why));
		for (const char *text : narrow_exporters)
			exporters.push_back(*PluginSpec::parse(text, &why));
		n_narrow = std::size(narrow_exporters);
	}
	if (importers.empty()) {
		for (const char *text : default_importers)
			importers.push_back(*PluginSpec::parse(text, &why));
		providers = contract::defaultFabricProviders();
	}
	survey(exporters, n_narrow, importers, providers);

	const auto note = [](const char *family, const std::vector<Pair> &pairs,
			     const char *reason) {
		if (pairs.empty())
			std::cout << "left out: " << family << " tests: " << reason << "\n";
	};
	note("Revoke", contract::revokingPairs(), "no pair has an exporter that may revoke");
	note("Invalidate and Move", contract::movablePairs(), "no pair is Movable");
	note("Quota", contract::chargedPairs(), "no pair pins memory that moves");

	testing::InitGoogleTest(&argc, argv);
	if (argc > 1)
		refuse(std::string("unknown option '") + argv[1] + "'");
	return RUN_ALL_TESTS();
}
