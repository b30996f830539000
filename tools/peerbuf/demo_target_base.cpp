// SPDX-License-Identifier: BSD-3-Clause
#include "demo_target_base.h"

#include <cerrno>

#include "exit_code.h"

namespace peerbuf::tools::demo
{

void TargetBase::tell(const std::string &title, std::vector<std::string> lines)
{
	if (!parent_.send(Section{title, std::move(lines)}.json()) && going())
		failure_ = {exitBad, parent_.problem()};
}

void TargetBase::say()
{
	const auto now = std::chrono::steady_clock::now();
	if (now < nextWord_)
		return;
	nextWord_ = now + progressEvery;
	send(Progress().json());
}

void TargetBase::send(const Json &word)
{
	if (!parent_.send(word) || (parent_.receive(), !parent_.open()))
		failure_ = {exitBad, parent_.problem()};
}

void TargetBase::broken(const std::string &step)
{
	const peerbuf_error &error = lastError();
	const std::string what = step + ": " + error.what;
	const bool gone =
		error.errc == PEERBUF_ERR_DEVICE_GONE || error.errc == PEERBUF_ERR_TIMEOUT;
	if (gone && going())
		result_.trouble = "the device is gone (" + what + ")";
	else if (going())
		fault(what);
}

void TargetBase::count(uint32_t flow)
{
	if (flow)
		flows_[peerbuf_flow_name(flow)]++;
	else
		result_.pairsRefused++;
}

void TargetBase::countFlows()
{
	for (const auto &[flow, count] : flows_)
		result_.flows.emplace_back(flow, count);
}

uint64_t TargetBase::ledgerUsed(const char *device) const
{
	uint64_t used = 0;
	for (const uint32_t column :
	     {PEERBUF_LEDGER_PINS, PEERBUF_LEDGER_WINDOW, PEERBUF_LEDGER_HOST}) {
		auto info = sized<peerbuf_ledger_info>();
		if (peerbuf_query_ledger(ctx_.get(), nullptr, device, column, &info) == 0)
			used += info.used;
	}
	return used;
}

int TargetBase::readEvents(peerbuf_reg_t reg, bool *ret_revoked)
{
	const int done = peerbuf_progress(ctx_.get());
	peerbuf_event event = {};
	while (ctx_.nextEvent(event) == 1) {
		if (event.type == PEERBUF_EVENT_DEVICE_GONE &&
		    event.exporter == device_.handle.id() && going())
			result_.trouble = "the device is gone";
		if (event.type == PEERBUF_EVENT_REVOKED && (!reg || event.reg == reg))
			*ret_revoked = true;
	}
	return done;
}

bool TargetBase::registerMemory(const ExporterSide &exporter, peerbuf_importer_t importer,
				uint64_t size, Registered *made, const peerbuf_policy *policy)
{
	if (made->buffer.alloc(ctx_, exporter.handle, size) ||
	    peerbuf_query_buffer(ctx_.get(), made->buffer.id(), &made->info))
		return false;
	auto source = sized<peerbuf_source>();
	source.fd = -1;
	source.buffer = made->buffer.id();
	source.length = size;
	return made->reg.make(ctx_, source, {importer}, readWrite, policy) == 0 &&
	       peerbuf_query_reg(ctx_.get(), made->reg.id(), &made->all) == 0 &&
	       peerbuf_query_reg_importer(ctx_.get(), made->reg.id(), 0, &made->region) == 0;
}

} // namespace peerbuf::tools::demo
