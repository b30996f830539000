// SPDX-License-Identifier: BSD-3-Clause
#include "matrix.h"

#include <algorithm>
#include <cstdio>
#include <map>

#include "exit_code.h"
#include "pair.h"
#include "policy_option.h"
#include "table.h"
#include "words.h"

namespace peerbuf::tools
{

namespace
{

/* So that every row and column of the negotiation table exists. */
constexpr const char *emulatedExporters[] = {
	"emulated:profile=static",  "emulated:profile=moves",
	"emulated:profile=revokes", "emulated:profile=static,revoke=may",
	"emulated:profile=nopin",
};
constexpr const char *emulatedImporters[] = {
	"emulated:profile=refault",
	"emulated:profile=revocable",
	"emulated:profile=neither",
};

/** What is tried where nothing was named: of plugins without variants, the plugin as it is. */
std::vector<std::string> allThereAre(const Context &ctx, peerbuf_plugin_kind kind)
{
	std::vector<std::string> specs;
	auto info = sized<peerbuf_plugin_info>();
	for (size_t i = 0; peerbuf_query_plugin(ctx.get(), i, &info) == 0; i++) {
		if (info.kind != static_cast<uint32_t>(kind))
			continue;
		const std::string name = info.name;
		if (name == "emulated" && kind == PEERBUF_PLUGIN_EXPORTER)
			specs.insert(specs.end(), std::begin(emulatedExporters),
				     std::end(emulatedExporters));
		else if (name == "emulated")
			specs.insert(specs.end(), std::begin(emulatedImporters),
				     std::end(emulatedImporters));
		else if (name == "fabric" && kind == PEERBUF_PLUGIN_IMPORTER)
			for (const std::string &provider : fabricProviders())
				specs.push_back("fabric:provider=" + provider);
		else if (name == "verbs" && kind == PEERBUF_PLUGIN_IMPORTER)
			for (const std::string &device : verbsDevices())
				specs.push_back("verbs:device=" + device);
		else
			specs.push_back(name);
	}
	return specs;
}

/** Something that was not named and cannot be opened is left out, with the reason. */
struct LeftOut {
	const char *kind;
	std::string spec;
	Failure failure;
};

/** @param named the user wants just these: then all must open. */
template <typename Side>
bool openAll(const Context &ctx, const std::vector<std::string> &texts, const char *kind,
	     bool named, std::vector<Side> *sides, std::vector<LeftOut> *leftOut,
	     Failure *ret_failure)
{
	for (const std::string &text : texts) {
		std::string why;
		const auto spec = PluginSpec::parse(text, &why);
		if (!spec) {
			*ret_failure = {exitUsage, why};
			return false;
		}
		Side side;
		if (side.open(ctx, *spec, ret_failure))
			sides->push_back(std::move(side));
		else if (named)
			return false;
		else
			leftOut->push_back({kind, text, *ret_failure});
	}
	return true;
}

/** Options of a plugin, shortened to what tells the variants apart. */
std::string heading(const PluginSpec &spec, const char *separator)
{
	std::string text = spec.name;
	for (const auto &[key, value] : spec.options) {
		const bool plain = key == "profile" || key == "provider" || key == "device";
		text += separator + (plain ? value : key + "=" + value);
	}
	return text;
}

/** Reasons in the order they were met, each once. */
class Reasons
{
public:
	size_t number(const std::string &reason)
	{
		const auto [it, isNew] = numbers_.emplace(reason, list_.size() + 1);
		if (isNew)
			list_.push_back(reason);
		return it->second;
	}
	const std::vector<std::string> &list() const { return list_; }

private:
	std::map<std::string, size_t> numbers_;
	std::vector<std::string> list_;
};

std::string cell(const PairResult &pair, Reasons *reasons)
{
	std::vector<std::string> numbers;
	if (pair.bad())
		numbers.push_back(std::to_string(reasons->number("error: " + pair.error)));
	for (const peerbuf_refusal &refusal : pair.refusals)
		numbers.push_back(std::to_string(reasons->number(refusalText(refusal))));
	std::string text = pair.verified == false ? "BAD DATA" : pair.outcome();
	if (!numbers.empty())
		text += " " + joined(numbers, ",");
	return text;
}

void print(const std::vector<ExporterSide> &exporters, const std::vector<ImporterSide> &importers,
	   const std::vector<PairResult> &pairs)
{
	const size_t width = terminalWidth(stdout);
	std::vector<std::string> header = {"exporter \\ importer"};
	for (const ImporterSide &importer : importers)
		header.push_back(heading(importer.spec, "\n") + "\n" + importer.kind());
	Table table(header);
	Reasons reasons;
	size_t verified = 0;
	size_t deviceSide = 0;
	size_t flows = 0;
	size_t next = 0;
	for (const ExporterSide &exporter : exporters) {
		std::vector<std::string> row = {heading(exporter.spec, " ")};
		for (size_t i = 0; i < importers.size(); i++) {
			const PairResult &pair = pairs[next++];
			row.push_back(cell(pair, &reasons));
			flows += pair.flow != PEERBUF_FLOW_NONE;
			verified += pair.verified == true;
			deviceSide += pair.deviceSideChecked;
		}
		table.add(row);
	}
	printf("%s\n", table.text(width).c_str());
	for (size_t i = 0; i < reasons.list().size(); i++)
		printf("%3zu  %s\n", i + 1, wrapped(reasons.list()[i], width - 5, 5).c_str());
	const std::string summary =
		std::to_string(pairs.size()) + " pairs: " + std::to_string(flows) +
		" with a flow, " + std::to_string(pairs.size() - flows) +
		" refused or failed. First, interior and last bytes written and read back right: " +
		std::to_string(verified) +
		", seen by the device itself: " + std::to_string(deviceSide) + ".";
	printf("\n%s\n", wrapped(summary, width, 0).c_str());
}

int fail(const Failure &failure)
{
	fprintf(stderr, "peerbuf matrix: %s\n", failure.why.c_str());
	return failure.exitCode;
}

} // namespace

int runMatrix(const MatrixOptions &options)
{
	auto policy = sized<peerbuf_policy>();
	for (const std::string &text : options.policy) {
		const std::string why = readPolicyOption(text, &policy);
		if (!why.empty())
			return fail({exitUsage, why});
	}
	Context ctx;
	if (ctx.open())
		return fail({exitMissing, lastError().what});
	std::vector<ExporterSide> exporters;
	std::vector<ImporterSide> importers;
	std::vector<LeftOut> leftOut;
	Failure failure;
	const auto open = [&](const std::vector<std::string> &given, peerbuf_plugin_kind kind,
			      auto *sides) {
		const char *word = kind == PEERBUF_PLUGIN_EXPORTER ? "exporter" : "importer";
		return openAll(ctx, given.empty() ? allThereAre(ctx, kind) : given, word,
			       !given.empty(), sides, &leftOut, &failure);
	};
	if (!open(options.exporters, PEERBUF_PLUGIN_EXPORTER, &exporters) ||
	    !open(options.importers, PEERBUF_PLUGIN_IMPORTER, &importers))
		return fail(failure);
	int code = exitOk;
	const auto firstAbsent =
		std::stable_partition(leftOut.begin(), leftOut.end(),
				      [](const LeftOut &left) { return !left.failure.absent; });
	const std::vector<LeftOut> absent(firstAbsent, leftOut.end());
	leftOut.erase(firstAbsent, leftOut.end());
	for (const LeftOut &left : leftOut) {
		fprintf(stderr, "peerbuf matrix: left out: %s\n", left.failure.why.c_str());
		if (left.failure.exitCode == exitBad)
			code = exitBad;
	}
	if (exporters.empty() || importers.empty())
		for (const LeftOut &left : absent)
			fprintf(stderr, "peerbuf matrix: not here: %s\n", left.failure.why.c_str());
	if (exporters.empty() || importers.empty())
		return fail({exitMissing,
			     std::string("there is no ") +
				     (exporters.empty() ? "exporter" : "importer") +
				     " that can be used (PEERBUF_PLUGIN_PATH names directories to "
				     "search)"});

	Output output(Output::reportFile(options.json));
	std::vector<PairResult> pairs;
	for (const ExporterSide &exporter : exporters) {
		for (const ImporterSide &importer : importers) {
			output.progress({"trying " + exporter.spec.text() + " with " +
					 importer.spec.text()});
			pairs.push_back(tryPair(ctx, exporter, importer, &policy));
			if (pairs.back().bad())
				code = exitBad;
		}
	}
	output.clear();
	if (!options.json) {
		print(exporters, importers, pairs);
		for (const LeftOut &left : absent)
			printf("%s\n",
			       wrapped("Not here: " + left.failure.why, terminalWidth(stdout), 0)
				       .c_str());
		return code;
	}
	Json out = {{"pairs", Json::array()}};
	const auto add = [&](const char *key, const std::vector<LeftOut> &list) {
		out[key] = Json::array();
		for (const LeftOut &left : list)
			out[key].push_back({{"kind", left.kind},
					    {"spec", left.spec},
					    {"why", left.failure.why}});
	};
	add("left_out", leftOut);
	add("not_here", absent);
	for (const PairResult &pair : pairs)
		out["pairs"].push_back(pair.json());
	printJson(out);
	return code;
}

} // namespace peerbuf::tools
