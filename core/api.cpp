// SPDX-License-Identifier: BSD-3-Clause
#include <cerrno>
#include <cstring>
#include <new>

#include <peerbuf/peerbuf.h>

#include "core/session.h"

/*
 * The C ABI over Session: structures in and out, errors for this thread, nothing thrown. What a
 * call does is in session.cpp.
 */

struct peerbuf_context {
	std::unique_ptr<peerbuf::Session> session;
};

namespace
{

using namespace peerbuf;

/** peerbuf_last_error of one thread, with what it points to. */
struct LastError {
	peerbuf_error error = {sizeof(peerbuf_error), PEERBUF_OK, 0, 0, "", 0, nullptr};
	std::string what;
	std::vector<peerbuf_refusal> refusals;
};
thread_local LastError lastError;

peerbuf_refusal toC(const Refusal &refusal)
{
	peerbuf_refusal out = {};
	out.struct_size = sizeof(out);
	out.flow = refusal.flow;
	out.errc = refusal.code;
	out.err = -refusal.err;
	copyText(out.who, refusal.who);
	copyText(out.capability, refusal.capability);
	copyText(out.why, refusal.why);
	return out;
}

int setError(const Error &error)
{
	LastError &last = lastError;
	last.what = error.what;
	last.refusals.clear();
	for (const Refusal &refusal : error.refusals)
		last.refusals.push_back(toC(refusal));
	last.error.errc = error.code;
	last.error.err = error.sysErrno ? -error.sysErrno : -EIO;
	last.error.what = last.what.c_str();
	last.error.n_refusals = last.refusals.size();
	last.error.refusals = last.refusals.data();
	return last.error.err;
}

/** Run @p body, which returns Result<int>; nothing leaves it but an int and the last error. */
template <typename Body> int entry(Body &&body) noexcept
{
	try {
		const Result<int> result = body();
		return result ? *result : setError(result.error());
	} catch (const std::bad_alloc &) {
		LastError &last = lastError; // no allocation here
		last.error.errc = PEERBUF_ERR_NO_MEMORY;
		last.error.err = -ENOMEM;
		last.error.what = "out of memory";
		last.error.n_refusals = 0;
		return -ENOMEM;
	} catch (const std::exception &e) {
		return setError(Error{PEERBUF_ERR_INTERNAL, EIO, e.what()});
	}
}

/** entry() with a context to run on. */
template <typename Body> int with(peerbuf_context *ctx, const char *call, Body &&body) noexcept
{
	return entry([&]() -> Result<int> {
		if (!ctx)
			return fail(PEERBUF_ERR_INVALID_ARGUMENT, EINVAL, call, ": ctx is NULL");
		return body(*ctx->session);
	});
}

/** A structure that the caller gave: not NULL, and not shorter than what this function reads. */
template <typename T> Result<void> usable(const T *given, const char *call, const char *what)
{
	if (!given)
		return fail(PEERBUF_ERR_INVALID_ARGUMENT, EINVAL, call, ": ", what, " is NULL");
	if (given->struct_size < sizeof(T))
		return fail(PEERBUF_ERR_INVALID_ARGUMENT, EINVAL, call, ": ", what,
			    "->struct_size is ", given->struct_size, ", at least ", sizeof(T),
			    " are needed");
	return {};
}

Result<void> notNull(const void *given, const char *call, const char *what)
{
	if (given)
		return {};
	return fail(PEERBUF_ERR_INVALID_ARGUMENT, EINVAL, call, ": ", what, " is NULL");
}

/** All but struct_size, which stays the caller's. */
template <typename T> int give(T *out, const T &value)
{
	const uint32_t size = out->struct_size;
	*out = value;
	out->struct_size = size;
	return 0;
}

Result<std::vector<peerbuf_param>> paramsFrom(const peerbuf_param *params, size_t n,
					      const char *call)
{
	if (n && !params)
		return fail(PEERBUF_ERR_INVALID_ARGUMENT, EINVAL, call,
			    ": params is NULL, n_params ", n);
	for (size_t i = 0; i < n; i++)
		if (!params[i].key || !params[i].value)
			return fail(PEERBUF_ERR_INVALID_ARGUMENT, EINVAL, call, ": params[", i,
				    "] has a NULL ", params[i].key ? "value" : "key");
	return std::vector<peerbuf_param>(params, params + n);
}

Result<Policy> policyFrom(const peerbuf_policy *given, const char *call)
{
	Policy policy;
	if (!given)
		return policy;
	if (Result<void> ok = usable(given, call, "policy"); !ok)
		return fail(ok.error());
	if (given->pins > PEERBUF_PINS_DEDICATED)
		return fail(PEERBUF_ERR_INVALID_ARGUMENT, EINVAL, call, ": policy->pins is ",
			    given->pins, ", not 0 (within limit) or 1 (dedicated)");
	if (given->ceiling > PEERBUF_FLOW_PINNED)
		return fail(PEERBUF_ERR_INVALID_ARGUMENT, EINVAL, call, ": policy->ceiling is ",
			    given->ceiling, ": none, Movable, Revocable or Pinned");
	policy.hostPlacementOk = given->host_placement_ok;
	policy.stagingOk = given->staging_ok;
	policy.dedicated = given->pins == PEERBUF_PINS_DEDICATED;
	policy.rekeyOk = given->rekey_ok;
	policy.partialOk = given->partial_ok;
	policy.ceiling = static_cast<peerbuf_flow>(given->ceiling);
	policy.tenant = given->tenant ? given->tenant : "";
	return policy;
}

} // namespace

extern "C" {

const peerbuf_error *peerbuf_last_error(void)
{
	return &lastError.error;
}

const char *peerbuf_version(void)
{
	return PEERBUF_VERSION;
}

const char *peerbuf_flow_name(uint32_t flow)
{
	return flowName(flow);
}

const char *peerbuf_errc_name(uint32_t errc)
{
	return errcName(errc);
}

const char *peerbuf_how_known_name(uint32_t how_known)
{
	return howKnownName(how_known);
}

int peerbuf_open(const peerbuf_open_attr *attr, peerbuf_context **ret_ctx)
{
	return entry([&]() -> Result<int> {
		if (Result<void> ok = notNull(ret_ctx, "open", "ret_ctx"); !ok)
			return fail(ok.error());
		Session::Options options;
		if (attr) {
			if (Result<void> ok = usable(attr, "open", "attr"); !ok)
				return fail(ok.error());
			if (attr->tenant)
				options.tenant = attr->tenant;
			if (attr->plugin_path)
				options.pluginPath = attr->plugin_path;
			if (attr->log)
				options.log = [log = attr->log, data = attr->log_data](
						      uint32_t level, const char *category,
						      const char *message) {
					log(data, level, category, message);
				};
		}
		if (options.tenant.empty())
			return fail(PEERBUF_ERR_INVALID_ARGUMENT, EINVAL, "open: tenant is empty");
		Result<std::unique_ptr<Session>> session = Session::create(std::move(options));
		if (!session)
			return fail(session.error());
		*ret_ctx = new peerbuf_context{std::move(*session)};
		return 0;
	});
}

int peerbuf_close(peerbuf_context *ctx)
{
	return entry([&]() -> Result<int> {
		delete ctx;
		return 0;
	});
}

int peerbuf_query_plugin(peerbuf_context *ctx, size_t index, peerbuf_plugin_info *ret_info)
{
	return with(ctx, "query_plugin", [&](Session &session) -> Result<int> {
		if (Result<void> ok = usable(ret_info, "query_plugin", "ret_info"); !ok)
			return fail(ok.error());
		const Result<Plugin> plugin = session.pluginAt(index);
		if (!plugin)
			return fail(plugin.error());
		peerbuf_plugin_info info = {};
		info.kind = plugin->kind;
		info.err = plugin->problem ? -plugin->problem->sysErrno : 0;
		info.capabilities = plugin->capabilities;
		copyText(info.name, plugin->name);
		copyText(info.description, plugin->description);
		copyText(info.path, plugin->path);
		copyText(info.why, plugin->problem ? plugin->problem->what : "");
		info.options = plugin->options;
		return give(ret_info, info);
	});
}

int peerbuf_exporter_open(peerbuf_context *ctx, const char *name, const peerbuf_param *params,
			  size_t n_params, peerbuf_exporter_t *ret_exporter)
{
	return with(ctx, "exporter_open", [&](Session &session) -> Result<int> {
		if (Result<void> ok = notNull(name, "exporter_open", "name"); !ok)
			return fail(ok.error());
		if (Result<void> ok = notNull(ret_exporter, "exporter_open", "ret_exporter"); !ok)
			return fail(ok.error());
		const auto list = paramsFrom(params, n_params, "exporter_open");
		if (!list)
			return fail(list.error());
		const Result<uint64_t> id = session.openExporter(name, *list);
		if (!id)
			return fail(id.error());
		*ret_exporter = *id;
		return 0;
	});
}

int peerbuf_exporter_close(peerbuf_context *ctx, peerbuf_exporter_t exporter)
{
	return with(ctx, "exporter_close", [&](Session &session) -> Result<int> {
		return session.closeExporter(exporter).map([] { return 0; });
	});
}

int peerbuf_query_exporter(peerbuf_context *ctx, peerbuf_exporter_t exporter,
			   peerbuf_exporter_offer *ret_offer)
{
	return with(ctx, "query_exporter", [&](Session &session) -> Result<int> {
		if (Result<void> ok = usable(ret_offer, "query_exporter", "ret_offer"); !ok)
			return fail(ok.error());
		const Result<std::shared_ptr<Exporter>> found = session.exporter(exporter);
		if (!found)
			return fail(found.error());
		const Result<peerbuf_exporter_offer> offer = (*found)->offer(0);
		if (!offer)
			return fail(offer.error());
		return give(ret_offer, *offer);
	});
}

int peerbuf_importer_open(peerbuf_context *ctx, const char *name, const peerbuf_param *params,
			  size_t n_params, const void *objects, peerbuf_importer_t *ret_importer)
{
	return with(ctx, "importer_open", [&](Session &session) -> Result<int> {
		if (Result<void> ok = notNull(name, "importer_open", "name"); !ok)
			return fail(ok.error());
		if (Result<void> ok = notNull(ret_importer, "importer_open", "ret_importer"); !ok)
			return fail(ok.error());
		const auto list = paramsFrom(params, n_params, "importer_open");
		if (!list)
			return fail(list.error());
		const Result<uint64_t> id = session.openImporter(name, *list, objects);
		if (!id)
			return fail(id.error());
		*ret_importer = *id;
		return 0;
	});
}

int peerbuf_importer_close(peerbuf_context *ctx, peerbuf_importer_t importer)
{
	return with(ctx, "importer_close", [&](Session &session) -> Result<int> {
		return session.closeImporter(importer).map([] { return 0; });
	});
}

int peerbuf_query_importer(peerbuf_context *ctx, peerbuf_importer_t importer,
			   peerbuf_importer_offer *ret_offer)
{
	return with(ctx, "query_importer", [&](Session &session) -> Result<int> {
		if (Result<void> ok = usable(ret_offer, "query_importer", "ret_offer"); !ok)
			return fail(ok.error());
		const Result<std::shared_ptr<Importer>> found = session.importer(importer);
		if (!found)
			return fail(found.error());
		const Result<peerbuf_importer_offer> offer = (*found)->offer();
		if (!offer)
			return fail(offer.error());
		return give(ret_offer, *offer);
	});
}

int peerbuf_exporter_open_ops(peerbuf_context *ctx, peerbuf_exporter_t exporter, const char *ops,
			      const void **ret_ops, void **ret_device)
{
	return with(ctx, "exporter_open_ops", [&](Session &session) -> Result<int> {
		if (!ops || !ret_ops || !ret_device)
			return fail(PEERBUF_ERR_INVALID_ARGUMENT, EINVAL,
				    "exporter_open_ops: ops, ret_ops or ret_device is NULL");
		const Result<std::shared_ptr<Exporter>> found = session.exporter(exporter);
		if (!found)
			return fail(found.error());
		const Result<const void *> table = (*found)->openOps(ops);
		if (!table)
			return fail(table.error());
		*ret_ops = *table;
		*ret_device = (*found)->device();
		return 0;
	});
}

int peerbuf_importer_open_ops(peerbuf_context *ctx, peerbuf_importer_t importer, const char *ops,
			      const void **ret_ops, void **ret_importer)
{
	return with(ctx, "importer_open_ops", [&](Session &session) -> Result<int> {
		if (!ops || !ret_ops || !ret_importer)
			return fail(PEERBUF_ERR_INVALID_ARGUMENT, EINVAL,
				    "importer_open_ops: ops, ret_ops or ret_importer is NULL");
		const Result<std::shared_ptr<Importer>> found = session.importer(importer);
		if (!found)
			return fail(found.error());
		const Result<const void *> table = (*found)->openOps(ops);
		if (!table)
			return fail(table.error());
		*ret_ops = *table;
		*ret_importer = (*found)->device();
		return 0;
	});
}

int peerbuf_importer_gate(peerbuf_context *ctx, peerbuf_importer_t importer,
			  peerbuf_gate **ret_gate)
{
	return with(ctx, "importer_gate", [&](Session &session) -> Result<int> {
		if (Result<void> ok = notNull(ret_gate, "importer_gate", "ret_gate"); !ok)
			return fail(ok.error());
		const Result<std::shared_ptr<Importer>> found = session.importer(importer);
		if (!found)
			return fail(found.error());
		const Result<peerbuf_gate *> gate = (*found)->gate();
		if (!gate)
			return fail(gate.error());
		*ret_gate = *gate;
		return 0;
	});
}

int peerbuf_cpu_begin(peerbuf_context *ctx, peerbuf_buffer_t buffer, uint64_t timeout_ns)
{
	return with(ctx, "cpu_begin", [&](Session &session) -> Result<int> {
		return session.cpuBegin(buffer, timeout_ns).map([] { return 0; });
	});
}

int peerbuf_cpu_end(peerbuf_context *ctx, peerbuf_buffer_t buffer)
{
	return with(ctx, "cpu_end", [&](Session &session) -> Result<int> {
		return session.cpuEnd(buffer).map([] { return 0; });
	});
}

int peerbuf_rekey_ready(peerbuf_context *ctx, peerbuf_reg_t reg)
{
	return with(ctx, "rekey_ready", [&](Session &session) -> Result<int> {
		return session.rekeyReady(reg).map([] { return 0; });
	});
}

int peerbuf_alloc(peerbuf_context *ctx, peerbuf_exporter_t exporter, uint64_t size,
		  peerbuf_buffer_t *ret_buffer)
{
	return with(ctx, "alloc", [&](Session &session) -> Result<int> {
		if (Result<void> ok = notNull(ret_buffer, "alloc", "ret_buffer"); !ok)
			return fail(ok.error());
		const Result<uint64_t> id = session.alloc(exporter, size);
		if (!id)
			return fail(id.error());
		*ret_buffer = *id;
		return 0;
	});
}

int peerbuf_free(peerbuf_context *ctx, peerbuf_buffer_t buffer)
{
	return with(ctx, "free", [&](Session &session) -> Result<int> {
		return session.free(buffer).map([] { return 0; });
	});
}

int peerbuf_query_buffer(peerbuf_context *ctx, peerbuf_buffer_t buffer,
			 peerbuf_buffer_info *ret_info)
{
	return with(ctx, "query_buffer", [&](Session &session) -> Result<int> {
		if (Result<void> ok = usable(ret_info, "query_buffer", "ret_info"); !ok)
			return fail(ok.error());
		const Result<std::shared_ptr<Buffer>> found = session.buffer(buffer);
		if (!found)
			return fail(found.error());
		const peerbuf_buffer_desc &desc = (*found)->desc();
		peerbuf_buffer_info info = {};
		info.exporter = (*found)->exporter()->id();
		info.handle = desc.handle;
		info.allocation_id = desc.allocation_id;
		info.generation = (*found)->currentGeneration();
		info.size = desc.size;
		info.address = reinterpret_cast<void *>(static_cast<uintptr_t>(desc.address));
		return give(ret_info, info);
	});
}

int peerbuf_register(peerbuf_context *ctx, const peerbuf_source *source,
		     const peerbuf_importer_t *importers, size_t n, uint32_t access,
		     const peerbuf_policy *policy, peerbuf_reg_t *ret_reg)
{
	constexpr size_t MAX_IMPORTERS = 64;
	return with(ctx, "register", [&](Session &session) -> Result<int> {
		if (Result<void> ok = usable(source, "register", "source"); !ok)
			return fail(ok.error());
		if (Result<void> ok = notNull(importers, "register", "importers"); !ok)
			return fail(ok.error());
		if (Result<void> ok = notNull(ret_reg, "register", "ret_reg"); !ok)
			return fail(ok.error());
		if (!n || n > MAX_IMPORTERS)
			return fail(PEERBUF_ERR_INVALID_ARGUMENT, EINVAL, "register: n is ", n,
				    ", not 1..", MAX_IMPORTERS);
		const Result<Policy> p = policyFrom(policy, "register");
		if (!p)
			return fail(p.error());
		Source from;
		from.buffer = source->buffer;
		from.address = reinterpret_cast<uintptr_t>(source->address);
		from.fd = source->fd;
		from.offset = source->offset;
		from.length = source->length;
		from.iova = source->iova;
		const Result<uint64_t> id = session.registerMemory(
			from, std::vector<uint64_t>(importers, importers + n), access, *p);
		if (!id)
			return fail(id.error());
		*ret_reg = *id;
		return 0;
	});
}

int peerbuf_deregister(peerbuf_context *ctx, peerbuf_reg_t reg)
{
	return with(ctx, "deregister", [&](Session &session) -> Result<int> {
		return session.deregister(reg).map([] { return 0; });
	});
}

int peerbuf_query_reg(peerbuf_context *ctx, peerbuf_reg_t reg, peerbuf_reg_info *ret_info)
{
	return with(ctx, "query_reg", [&](Session &session) -> Result<int> {
		if (Result<void> ok = usable(ret_info, "query_reg", "ret_info"); !ok)
			return fail(ok.error());
		const auto found = session.registration(reg);
		if (!found)
			return fail(found.error());
		const Session::Registration &r = **found;
		peerbuf_reg_info info = {};
		for (const Session::Member &member : r.members) {
			if (!member.attachment)
				continue;
			info.flow = std::max<uint32_t>(info.flow, member.plan.flow);
			info.flows_possible |= member.plan.flowsPossible;
			info.how_known = std::max<uint32_t>(info.how_known, member.plan.howKnown);
			info.placement |= member.plan.placement;
			info.revoked |= member.attachment->revokedNow();
			const Attachment::Charged charged = member.attachment->charged();
			info.pinned_bytes += charged.pins;
			info.window_bytes += charged.window;
			info.host_bytes += charged.host;
		}
		info.n_importers = static_cast<uint32_t>(r.members.size());
		info.n_refusals = static_cast<uint32_t>(r.refusals.size());
		info.buffer = r.bufferId;
		info.offset = r.range.offset;
		info.length = r.range.length;
		info.generation = r.buffer->currentGeneration();
		return give(ret_info, info);
	});
}

int peerbuf_query_reg_importer(peerbuf_context *ctx, peerbuf_reg_t reg, size_t index,
			       peerbuf_reg_importer_info *ret_info)
{
	return with(ctx, "query_reg_importer", [&](Session &session) -> Result<int> {
		if (Result<void> ok = usable(ret_info, "query_reg_importer", "ret_info"); !ok)
			return fail(ok.error());
		const auto found = session.registration(reg);
		if (!found)
			return fail(found.error());
		const Session::Registration &r = **found;
		if (index >= r.members.size())
			return fail(PEERBUF_ERR_NOT_FOUND, ENOENT, "query_reg_importer: index ",
				    index, ", there are ", r.members.size(), " importers");
		const Session::Member &member = r.members[index];
		peerbuf_reg_importer_info info = {};
		info.importer = member.importer->id();
		if (!member.attachment) {
			info.status = -member.error.sysErrno;
			return give(ret_info, info);
		}
		const Plan &plan = member.plan;
		const peerbuf_region region = member.attachment->region();
		info.flow = plan.flow;
		info.flows_possible = plan.flowsPossible;
		info.how_known = plan.howKnown;
		info.placement = plan.placement;
		info.variant = plan.variant;
		info.handle_kind = plan.handleKind;
		info.peer2peer = plan.peer2peer;
		info.software = plan.software;
		info.dropped_access = plan.droppedAccess;
		info.revoked = member.attachment->revokedNow();
		info.lkey = region.lkey;
		info.rkey = region.rkey;
		info.raw_key_size = region.raw_key_size;
		info.kernel_flow = region.kernel_flow;
		info.key64 = region.key64;
		memcpy(info.raw_key, region.raw_key, sizeof(info.raw_key));
		info.remote_base = region.remote_base;
		info.native = region.native;
		info.desc = region.desc;
		return give(ret_info, info);
	});
}

int peerbuf_query_refusal(peerbuf_context *ctx, peerbuf_reg_t reg, size_t index,
			  peerbuf_refusal *ret_refusal)
{
	return with(ctx, "query_refusal", [&](Session &session) -> Result<int> {
		if (Result<void> ok = usable(ret_refusal, "query_refusal", "ret_refusal"); !ok)
			return fail(ok.error());
		const auto found = session.registration(reg);
		if (!found)
			return fail(found.error());
		if (index >= (*found)->refusals.size())
			return fail(PEERBUF_ERR_NOT_FOUND, ENOENT, "query_refusal: index ", index,
				    ", there are ", (*found)->refusals.size(), " refusals");
		return give(ret_refusal, toC((*found)->refusals[index]));
	});
}

int peerbuf_negotiate(peerbuf_context *ctx, peerbuf_exporter_t exporter,
		      peerbuf_importer_t importer, uint32_t access, const peerbuf_policy *policy,
		      uint32_t *ret_flow, peerbuf_refusal *refusals, size_t capacity, size_t *ret_n)
{
	return with(ctx, "negotiate", [&](Session &session) -> Result<int> {
		if (Result<void> ok = notNull(ret_flow, "negotiate", "ret_flow"); !ok)
			return fail(ok.error());
		if (Result<void> ok = notNull(ret_n, "negotiate", "ret_n"); !ok)
			return fail(ok.error());
		if (capacity && !refusals)
			return fail(PEERBUF_ERR_INVALID_ARGUMENT, EINVAL,
				    "negotiate: refusals is NULL, capacity ", capacity);
		const Result<Policy> p = policyFrom(policy, "negotiate");
		if (!p)
			return fail(p.error());
		const Result<Answer> answer = session.negotiateOnly(exporter, importer, access, *p);
		if (!answer)
			return fail(answer.error());
		const size_t n = std::min(capacity, answer->refusals.size());
		for (size_t i = 0; i < n; i++)
			refusals[i] = toC(answer->refusals[i]);
		*ret_n = answer->refusals.size();
		*ret_flow = answer->plan ? answer->plan->flow : PEERBUF_FLOW_NONE;
		if (answer->plan)
			return 0;
		const Refusal *why = decisive(answer->refusals);
		Error error{why ? why->code : PEERBUF_ERR_INTERNAL, why ? why->err : EIO,
			    why ? text(why->who, " (", why->capability, "): ", why->why)
				: "no flow is possible",
			    answer->refusals};
		return fail(std::move(error));
	});
}

int peerbuf_progress(peerbuf_context *ctx)
{
	return with(ctx, "progress", [](Session &session) { return session.progress(); });
}

int peerbuf_event_fd(peerbuf_context *ctx)
{
	return with(ctx, "event_fd",
		    [](Session &session) -> Result<int> { return session.eventFd().get(); });
}

int peerbuf_next_event(peerbuf_context *ctx, peerbuf_event *ret_event)
{
	return with(ctx, "next_event", [&](Session &session) -> Result<int> {
		if (Result<void> ok = usable(ret_event, "next_event", "ret_event"); !ok)
			return fail(ok.error());
		const std::optional<peerbuf_event> event = session.nextEvent();
		if (event)
			give(ret_event, *event);
		return event ? 1 : 0;
	});
}

int peerbuf_query_ledger(peerbuf_context *ctx, const char *tenant, const char *device,
			 uint32_t column, peerbuf_ledger_info *ret_info)
{
	return with(ctx, "query_ledger", [&](Session &session) -> Result<int> {
		if (Result<void> ok = usable(ret_info, "query_ledger", "ret_info"); !ok)
			return fail(ok.error());
		if (column < PEERBUF_LEDGER_PINS || column > PEERBUF_LEDGER_HOST)
			return fail(PEERBUF_ERR_INVALID_ARGUMENT, EINVAL, "query_ledger: column ",
				    column, ", not 1..3");
		const Ledger::Usage usage =
			session.ledger().usage(tenant ? tenant : "", device ? device : "",
					       static_cast<peerbuf_ledger_column>(column));
		peerbuf_ledger_info info = {};
		info.holders = usage.holders;
		info.used = usage.used;
		info.limit = usage.limit;
		return give(ret_info, info);
	});
}

int peerbuf_ledger_set_limit(peerbuf_context *ctx, const char *tenant, const char *device,
			     uint32_t column, uint64_t bytes)
{
	return with(ctx, "ledger_set_limit", [&](Session &session) -> Result<int> {
		if (Result<void> ok = notNull(device, "ledger_set_limit", "device"); !ok)
			return fail(ok.error());
		if (column < PEERBUF_LEDGER_PINS || column > PEERBUF_LEDGER_HOST)
			return fail(PEERBUF_ERR_INVALID_ARGUMENT, EINVAL,
				    "ledger_set_limit: column ", column, ", not 1..3");
		session.ledger().setLimit({tenant ? tenant : session.tenant(), device},
					  static_cast<peerbuf_ledger_column>(column), bytes);
		return 0;
	});
}

} // extern "C"
