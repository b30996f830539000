// SPDX-License-Identifier: BSD-3-Clause
#include "pair.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "exit_code.h"
#include "words.h"

namespace peerbuf::tools
{

namespace
{

constexpr uint32_t access =
	PEERBUF_ACCESS_LOCAL_WRITE | PEERBUF_ACCESS_REMOTE_READ | PEERBUF_ACCESS_REMOTE_WRITE;
constexpr uint64_t scratchSize = 1 << 20;

/** An open that failed: the caller's words, or something of this machine. */
Failure openFailure(const std::string &what)
{
	const peerbuf_error &error = lastError();
	Failure failure;
	failure.why = what + ": " + error.what;
	switch (error.errc) {
	case PEERBUF_ERR_NOT_FOUND:
	case PEERBUF_ERR_ACCESS:
		failure.exitCode = exitMissing;
		failure.absent = true;
		break;
	case PEERBUF_ERR_INVALID_ARGUMENT:
		failure.exitCode = exitUsage;
		break;
	case PEERBUF_ERR_BAD_PLUGIN:
	case PEERBUF_ERR_INTERNAL:
		failure.exitCode = exitBad;
		break;
	default:
		failure.exitCode = exitMissing;
	}
	return failure;
}

/** Whether a registration that failed so was refused; otherwise something is broken. */
bool isRefusal(uint32_t errc)
{
	switch (errc) {
	case PEERBUF_ERR_UNSUPPORTED_KERNEL:
	case PEERBUF_ERR_UNSUPPORTED_DRIVER:
	case PEERBUF_ERR_NOT_HOST_MEMORY:
	case PEERBUF_ERR_PIN_REFUSED:
	case PEERBUF_ERR_REVOKE_UNSUPPORTED:
	case PEERBUF_ERR_NO_P2P_PATH:
	case PEERBUF_ERR_NOT_P2P_PLACEMENT:
	case PEERBUF_ERR_WINDOW_EXHAUSTED:
	case PEERBUF_ERR_QUOTA:
	case PEERBUF_ERR_DEVICE_RESOURCES:
	case PEERBUF_ERR_DEVICE_LIMIT:
	case PEERBUF_ERR_ACCESS:
	case PEERBUF_ERR_UNTRANSLATED:
	case PEERBUF_ERR_POLICY:
		return true;
	default:
		return false;
	}
}

uint8_t patternByte(size_t position)
{
	uint64_t x = position / 8 + 0x9E3779B97F4A7C15;
	x ^= x >> 30;
	x *= 0xBF58476D1CE4E5B9;
	x ^= x >> 27;
	return static_cast<uint8_t>(x >> (8 * (position % 8))) | 1; /* never that of fresh memory */
}

/** Registered memory and the two ways to its bytes. */
struct Tried {
	const ExporterSide &exporter;
	const ImporterSide &importer;
	peerbuf_buffer_info buffer;
	peerbuf_reg_importer_info region;
	uint64_t offset; /* of the region in the buffer */
	uint64_t length;
};

bool hasDataPath(const ImporterSide &importer)
{
	return importer.fabric || importer.verbs || (importer.ops && importer.ops->transfer);
}

int transfer(const Tried &tried, bool write, uint64_t at, uint8_t *data, size_t length,
	     std::string &error)
{
	if (tried.importer.fabric)
		return tried.importer.fabric->transfer(tried.region, write, at, data, length,
						       error);
	if (tried.importer.verbs)
		return tried.importer.verbs->transfer(tried.region, write, at, data, length, error);
	auto t = sized<peerbuf_transfer>();
	t.op = write ? PEERBUF_TRANSFER_WRITE : PEERBUF_TRANSFER_READ;
	t.key64 = tried.region.key64;
	t.remote_addr = tried.region.remote_base + at;
	t.data = data;
	t.length = length;
	const int rc = tried.importer.ops->transfer(tried.importer.device, &t);
	if (rc)
		error = errnoWord(rc);
	return rc;
}

/** Compare with the pattern, or with fresh memory. @return "" or the first difference. */
std::string difference(const std::vector<uint8_t> &got, uint64_t at, bool fresh, const char *side)
{
	for (size_t i = 0; i < got.size(); i++) {
		const uint8_t want = fresh ? 0 : patternByte(at + i);
		if (got[i] != want)
			return std::string("byte ") + std::to_string(at + i) + " is " +
			       std::to_string(got[i]) + " instead of " + std::to_string(want) +
			       " (" + side + ")";
	}
	return "";
}

/** The device's own view of [at, at + length) of the region; around it memory must be fresh. */
std::string checkDeviceSide(const Tried &tried, uint64_t at, size_t length)
{
	const peerbuf_exporter_test_ops &ops = *tried.exporter.ops;
	const uint64_t start = tried.offset + at;
	std::vector<uint8_t> got(length);
	int rc = ops.device_read(tried.exporter.device, tried.buffer.handle, start, got.data(),
				 length);
	if (rc)
		return "reading the device's memory: " + errnoWord(rc);
	std::string wrong = difference(got, at, false, "read by the device");
	std::vector<uint8_t> neighbour(1);
	for (const uint64_t beside : {start - 1, start + length}) {
		if (!wrong.empty() || beside >= tried.buffer.size)
			continue;
		rc = ops.device_read(tried.exporter.device, tried.buffer.handle, beside,
				     neighbour.data(), 1);
		if (rc)
			return "reading the device's memory: " + errnoWord(rc);
		if (neighbour[0])
			wrong = "byte " + std::to_string(beside) +
				" of the buffer was written, beside the transfer";
	}
	return wrong;
}

/** @return "" or what is wrong. */
std::string verify(const Tried &tried, PairResult *result)
{
	constexpr uint64_t most = 777; /* odd, and more than a packet's header */
	const uint64_t n = std::min(most, tried.length / 4);
	for (const uint64_t at : {uint64_t{0}, tried.length / 2 - n / 2, tried.length - n}) {
		std::vector<uint8_t> data(n);
		for (size_t i = 0; i < n; i++)
			data[i] = patternByte(at + i);
		const std::string where =
			"[" + std::to_string(at) + ", +" + std::to_string(n) + "): ";
		std::string error;
		if (transfer(tried, true, at, data.data(), n, error))
			return "write of " + where + error;
		std::vector<uint8_t> back(n);
		if (transfer(tried, false, at, back.data(), n, error))
			return "read of " + where + error;
		std::string wrong = difference(back, at, false, "read back");
		if (wrong.empty() && tried.exporter.ops && tried.exporter.ops->device_read) {
			wrong = checkDeviceSide(tried, at, n);
			result->deviceSideChecked = true;
		}
		if (!wrong.empty())
			return "after the write of " + where + wrong;
	}
	return "";
}

void tryRegistered(const Context &ctx, const ExporterSide &exporter, const ImporterSide &importer,
		   const BufferHandle &buffer, const peerbuf_policy *policy, PairResult *result)
{
	auto info = sized<peerbuf_buffer_info>();
	if (peerbuf_query_buffer(ctx.get(), buffer.id(), &info)) {
		result->error = lastError().what;
		return;
	}
	auto source = sized<peerbuf_source>();
	source.fd = -1;
	source.buffer = buffer.id();
	/* an offset and no whole pages, so that one who drops or rounds them is found out */
	source.offset = exporter.offer.granularity + 0x180;
	source.length = info.size - 2 * exporter.offer.granularity - 1;

	Registration reg;
	if (reg.make(ctx, source, {importer.handle.id()}, access, policy)) {
		result->refusals = refusalsOf(ctx, 0);
		if (!isRefusal(lastError().errc) || result->refusals.empty())
			result->error = lastError().what;
		return;
	}
	auto all = sized<peerbuf_reg_info>();
	Tried tried = {exporter,      importer,	    info, sized<peerbuf_reg_importer_info>(),
		       source.offset, source.length};
	if (peerbuf_query_reg(ctx.get(), reg.id(), &all) ||
	    peerbuf_query_reg_importer(ctx.get(), reg.id(), 0, &tried.region)) {
		result->error = lastError().what;
		return;
	}
	result->flow = tried.region.flow;
	result->howKnown = tried.region.how_known;
	result->kernelFlow = tried.region.kernel_flow;
	result->placement = tried.region.placement;
	result->software = tried.region.software;
	result->refusals = refusalsOf(ctx, reg.id());
	if (hasDataPath(importer)) {
		result->error = verify(tried, result);
		result->verified = result->error.empty();
	}
	if (reg.reset() && result->error.empty())
		result->error = std::string("deregistering: ") + lastError().what;
}

} // namespace

bool findPlugin(const Context &ctx, peerbuf_plugin_kind kind, const std::string &name,
		Failure *ret_failure)
{
	const char *what = kind == PEERBUF_PLUGIN_EXPORTER ? "exporter" : "importer";
	std::vector<std::string> names;
	auto info = sized<peerbuf_plugin_info>();
	for (size_t i = 0; peerbuf_query_plugin(ctx.get(), i, &info) == 0; i++) {
		if (info.kind != static_cast<uint32_t>(kind))
			continue;
		if (name == info.name && info.err == 0)
			return true;
		if (name == info.name) {
			*ret_failure = {exitBad, std::string(what) + " '" + name + "' (" +
							 info.path + "): " + info.why};
			return false;
		}
		names.emplace_back(info.name);
	}
	*ret_failure = {exitUsage, std::string("there is no ") + what + " '" + name +
					   "'; there are: " + joined(names)};
	return false;
}

bool ExporterSide::open(const Context &ctx, const PluginSpec &what, Failure *ret_failure)
{
	spec = what;
	if (!findPlugin(ctx, PEERBUF_PLUGIN_EXPORTER, spec.name, ret_failure))
		return false;
	offer = sized<peerbuf_exporter_offer>();
	if (handle.open(ctx, spec.name.c_str(), spec.params()) ||
	    peerbuf_query_exporter(ctx.get(), handle.id(), &offer)) {
		*ret_failure = openFailure("exporter " + spec.text());
		return false;
	}
	const void *table = nullptr;
	if (peerbuf_exporter_open_ops(ctx.get(), handle.id(), PEERBUF_EXPORTER_TEST_OPS, &table,
				      &device) == 0)
		ops = static_cast<const peerbuf_exporter_test_ops *>(table);
	return true;
}

bool ImporterSide::open(const Context &ctx, const PluginSpec &what, Failure *ret_failure)
{
	spec = what;
	if (!findPlugin(ctx, PEERBUF_PLUGIN_IMPORTER, spec.name, ret_failure))
		return false;
	PluginSpec plain = spec;
	if (spec.name == "fabric") {
		const std::string *wanted = spec.option("provider");
		const std::string provider = wanted ? findProvider(*wanted) : defaultProvider();
		if (provider.empty()) {
			*ret_failure = {wanted ? exitUsage : exitMissing,
					"importer " + spec.text() + ": no such provider of " +
						"libfabric for RMA; there are: " +
						joined(fabricProviders())};
			return false;
		}
		std::string why;
		fabric = FabricSide::create(provider, why);
		if (!fabric) {
			*ret_failure = {exitMissing, "importer " + spec.text() + ": " + why};
			return false;
		}
		plain = spec.without("provider");
		spec = spec.with("provider", fabric->provider());
	}
	if (spec.name == "verbs") {
		const std::string *wanted = spec.option("device");
		std::string why;
		verbs = VerbsSide::create(wanted ? *wanted : "", why);
		if (!verbs) {
			*ret_failure = {exitMissing, "importer " + spec.text() + ": " + why, true};
			return false;
		}
		plain = spec.without("device");
		spec = spec.with("device", verbs->device());
	}
	offer = sized<peerbuf_importer_offer>();
	const void *objects = fabric ? fabric->objects() : verbs ? verbs->objects() : nullptr;
	if (handle.open(ctx, spec.name.c_str(), plain.params(), objects) ||
	    peerbuf_query_importer(ctx.get(), handle.id(), &offer)) {
		*ret_failure = openFailure("importer " + spec.text());
		return false;
	}
	const void *table = nullptr;
	if (peerbuf_importer_open_ops(ctx.get(), handle.id(), PEERBUF_IMPORTER_TEST_OPS, &table,
				      &device) == 0)
		ops = static_cast<const peerbuf_importer_test_ops *>(table);
	peerbuf_gate *gate = nullptr;
	if (fabric && peerbuf_importer_gate(ctx.get(), handle.id(), &gate) == 0)
		fabric->useGate(gate);
	return true;
}

std::string ImporterSide::kind() const
{
	if (spec.name == "emulated")
		return "emulated NIC";
	if (verbs)
		return "RDMA device";
	return offer.software ? "software RMA" : "hardware";
}

std::vector<peerbuf_refusal> refusalsOf(const Context &ctx, peerbuf_reg_t reg)
{
	std::vector<peerbuf_refusal> refusals;
	if (!reg) {
		const peerbuf_error &error = lastError();
		refusals.assign(error.refusals, error.refusals + error.n_refusals);
		return refusals;
	}
	auto refusal = sized<peerbuf_refusal>();
	while (peerbuf_query_refusal(ctx.get(), reg, refusals.size(), &refusal) == 0)
		refusals.push_back(refusal);
	return refusals;
}

std::string refusalText(const peerbuf_refusal &refusal)
{
	std::string text = std::string("not ") + peerbuf_flow_name(refusal.flow) + ": " +
			   refusal.who + " (" + refusal.capability + "): " + refusal.why;
	if (refusal.err)
		text += " [" + errnoWord(refusal.err) + "]";
	return text;
}

Json refusalJson(const peerbuf_refusal &refusal)
{
	return {{"who", refusal.who},
		{"capability", refusal.capability},
		{"why", refusal.why},
		{"errno", refusal.err ? Json(errnoWord(refusal.err)) : Json(nullptr)},
		{"errc", peerbuf_errc_name(refusal.errc)},
		{"flow", peerbuf_flow_name(refusal.flow)}};
}

std::string PairResult::outcome() const
{
	if (flow)
		return peerbuf_flow_name(flow);
	return bad() ? "error" : "refused";
}

Json PairResult::json() const
{
	Json out = {
		{"exporter", exporter},
		{"importer", importer},
		{"flow", peerbuf_flow_name(flow)},
		{"how_known", howKnown ? Json(peerbuf_how_known_name(howKnown)) : Json(nullptr)},
		{"kernel_flow", kernelFlow ? Json(peerbuf_flow_name(kernelFlow)) : Json(nullptr)},
		{"placement", flow ? Json(placementWords(placement)) : Json(nullptr)},
		{"software", software},
		{"verified", verified ? Json(*verified) : Json(nullptr)},
		{"device_side_checked", deviceSideChecked},
		{"refusals", Json::array()},
		{"error", bad() ? Json(error) : Json(nullptr)}};
	for (const peerbuf_refusal &refusal : refusals)
		out["refusals"].push_back(refusalJson(refusal));
	return out;
}

PairResult tryPair(const Context &ctx, const ExporterSide &exporter, const ImporterSide &importer,
		   const peerbuf_policy *policy)
{
	PairResult result;
	result.exporter = exporter.spec.text();
	result.importer = importer.spec.text();
	result.software = importer.offer.software;
	BufferHandle buffer;
	/* many pages where they are small, so that they lie in several places */
	const uint64_t pages =
		std::clamp<uint64_t>(scratchSize / exporter.offer.granularity, 4, 64);
	if (buffer.alloc(ctx, exporter.handle, pages * exporter.offer.granularity)) {
		result.error = lastError().what;
		return result;
	}
	tryRegistered(ctx, exporter, importer, buffer, policy, &result);
	if (buffer.reset() && result.error.empty())
		result.error = std::string("freeing the scratch memory: ") + lastError().what;
	return result;
}

} // namespace peerbuf::tools
