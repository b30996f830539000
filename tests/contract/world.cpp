// SPDX-License-Identifier: BSD-3-Clause
#include "world.h"

#include <algorithm>
#include <chrono>
#include <poll.h>

#include <peerbuf/plugin.h>

#include "fabric_peer.h"
#include "support/seed.h"
#include "verbs_peer.h"

namespace peerbuf::contract
{

using test::LastError;

namespace
{

constexpr std::chrono::seconds patience(10);

} // namespace

peerbuf_exporter_stats Exporter::stats() const
{
	peerbuf_exporter_stats stats = {};
	stats.struct_size = sizeof(stats);
	const int rc = ops->stats(device, &stats);
	EXPECT_EQ(0, rc) << "stats of exporter " << spec.text() << ": " << test::errnoName(rc);
	return stats;
}

peerbuf_importer_stats Importer::stats() const
{
	peerbuf_importer_stats stats = {};
	stats.struct_size = sizeof(stats);
	const int rc = ops->stats(device, &stats);
	EXPECT_EQ(0, rc) << "stats of importer " << spec.text() << ": " << test::errnoName(rc);
	return stats;
}

World::World() : before_(test::ProcessState::now())
{
	peerbuf_open_attr attr = {};
	attr.struct_size = sizeof(attr);
	attr.tenant = "contract";
	log_.attach(&attr);
	EXPECT_PB_OK(peerbuf_open(&attr, &ctx_));
}

World::~World()
{
	close();
}

Exporter *World::tryExporter(const test::PluginSpec &spec, std::string *ret_why)
{
	const std::set<int> children = test::ProcessState::now().children;
	auto exporter = std::make_unique<Exporter>();
	exporter->spec = spec;
	const std::vector<peerbuf_param> params = spec.params();
	if (peerbuf_exporter_open(ctx_, spec.name.c_str(), params.data(), params.size(),
				  &exporter->id) < 0) {
		*ret_why = LastError::take().text();
		return nullptr;
	}
	exporter->offer.struct_size = sizeof(exporter->offer);
	if (peerbuf_query_exporter(ctx_, exporter->id, &exporter->offer) < 0) {
		*ret_why = "no offer: " + LastError::take().text();
		peerbuf_exporter_close(ctx_, exporter->id);
		return nullptr;
	}
	for (size_t i = 0;; i++) {
		peerbuf_plugin_info info = {};
		info.struct_size = sizeof(info);
		if (peerbuf_query_plugin(ctx_, i, &info) < 0)
			break;
		if (info.kind == PEERBUF_PLUGIN_EXPORTER && spec.name == info.name)
			exporter->capabilities = info.capabilities;
	}
	const void *ops = nullptr;
	if (peerbuf_exporter_open_ops(ctx_, exporter->id, PEERBUF_EXPORTER_TEST_OPS, &ops,
				      &exporter->device) == 0)
		exporter->ops = static_cast<const peerbuf_exporter_test_ops *>(ops);
	for (const int child : test::ProcessState::now().children) {
		if (children.count(child) == 0)
			exporter->process = child;
	}
	exporters_.push_back(std::move(exporter));
	return exporters_.back().get();
}

Importer *World::tryImporter(const test::PluginSpec &spec, std::string *ret_why)
{
	auto importer = std::make_unique<Importer>();
	importer->spec = spec;
	test::PluginSpec plain = spec;
	if (spec.name == "fabric") {
		importer->objects = makeFabricObjects(spec.option("provider"),
						      spec.option("bracketed") == "yes", ret_why);
		if (!importer->objects)
			return nullptr;
		// they are the suite's, the domain is made with them
		plain = spec.without("provider").without("bracketed");
	}
	if (spec.name == "verbs") {
		importer->objects = makeVerbsObjects(spec.option("device"), ret_why);
		if (!importer->objects)
			return nullptr;
		plain = spec.without("device"); // the suite opens it
	}
	if (spec.name == "emulated" && spec.option("seed").empty())
		plain = spec.with("seed", std::to_string(test::seed()));
	const std::vector<peerbuf_param> params = plain.params();
	if (peerbuf_importer_open(ctx_, spec.name.c_str(), params.data(), params.size(),
				  importer->objects ? importer->objects->objects() : nullptr,
				  &importer->id) < 0) {
		*ret_why = LastError::take().text();
		return nullptr;
	}
	if (importer->objects)
		importer->objects->opened(ctx_, importer->id);
	importer->offer.struct_size = sizeof(importer->offer);
	if (peerbuf_query_importer(ctx_, importer->id, &importer->offer) < 0) {
		*ret_why = "no offer: " + LastError::take().text();
		peerbuf_importer_close(ctx_, importer->id);
		return nullptr;
	}
	const void *ops = nullptr;
	if (peerbuf_importer_open_ops(ctx_, importer->id, PEERBUF_IMPORTER_TEST_OPS, &ops,
				      &importer->device) == 0)
		importer->ops = static_cast<const peerbuf_importer_test_ops *>(ops);
	importers_.push_back(std::move(importer));
	return importers_.back().get();
}

Exporter *World::addExporter(const test::PluginSpec &spec)
{
	std::string why;
	Exporter *exporter = tryExporter(spec, &why);
	EXPECT_NE(nullptr, exporter) << "exporter " << spec.text() << ": " << why;
	return exporter;
}

Importer *World::addImporter(const test::PluginSpec &spec)
{
	std::string why;
	Importer *importer = tryImporter(spec, &why);
	EXPECT_NE(nullptr, importer) << "importer " << spec.text() << ": " << why;
	return importer;
}

Buffer World::alloc(const Exporter &exporter, uint64_t size)
{
	Buffer buffer;
	const int rc = peerbuf_alloc(ctx_, exporter.id, size, &buffer.id);
	EXPECT_TRUE(test::succeeded("peerbuf_alloc", rc)) << size << " bytes";
	if (rc < 0)
		return {};
	peerbuf_buffer_info info = {};
	info.struct_size = sizeof(info);
	EXPECT_PB_OK(peerbuf_query_buffer(ctx_, buffer.id, &info));
	buffer.handle = info.handle;
	buffer.size = info.size;
	buffer.address = info.address;
	buffers_.emplace_back(buffer, &exporter);
	return buffer;
}

int World::free(const Buffer &buffer)
{
	const int rc = peerbuf_free(ctx_, buffer.id);
	if (rc == 0) {
		const auto same = [&](const auto &entry) { return entry.first.id == buffer.id; };
		buffers_.erase(std::remove_if(buffers_.begin(), buffers_.end(), same),
			       buffers_.end());
	}
	return rc;
}

int World::registerRange(const Buffer &buffer, uint64_t offset, uint64_t length,
			 const std::vector<peerbuf_importer_t> &importers, uint32_t access,
			 const peerbuf_policy *policy, peerbuf_reg_t *ret_reg, uint64_t iova)
{
	peerbuf_source source = {};
	source.struct_size = sizeof(source);
	source.fd = -1;
	source.buffer = buffer.id;
	source.offset = offset;
	source.length = length;
	source.iova = iova;
	return registerSource(source, importers, access, policy, ret_reg);
}

int World::registerSource(const peerbuf_source &source,
			  const std::vector<peerbuf_importer_t> &importers, uint32_t access,
			  const peerbuf_policy *policy, peerbuf_reg_t *ret_reg)
{
	const int rc = peerbuf_register(ctx_, &source, importers.data(), importers.size(), access,
					policy, ret_reg);
	if (rc == 0)
		regs_.push_back(*ret_reg);
	return rc;
}

int World::deregister(peerbuf_reg_t reg)
{
	const int rc = peerbuf_deregister(ctx_, reg);
	if (rc == 0)
		regs_.erase(std::remove(regs_.begin(), regs_.end(), reg), regs_.end());
	return rc;
}

void World::deregisterAll()
{
	while (!regs_.empty()) {
		const peerbuf_reg_t reg = regs_.back();
		regs_.pop_back();
		EXPECT_PB_OK(peerbuf_deregister(ctx_, reg));
	}
}

RegInfo World::regInfo(peerbuf_reg_t reg) const
{
	RegInfo info = {};
	info.struct_size = sizeof(info);
	EXPECT_PB_OK(peerbuf_query_reg(ctx_, reg, &info));
	return info;
}

RegionInfo World::region(peerbuf_reg_t reg, size_t index) const
{
	RegionInfo info = {};
	info.struct_size = sizeof(info);
	EXPECT_PB_OK(peerbuf_query_reg_importer(ctx_, reg, index, &info));
	return info;
}

std::vector<peerbuf_event> World::events()
{
	std::vector<peerbuf_event> all;
	for (;;) {
		peerbuf_event event = {};
		event.struct_size = sizeof(event);
		const int rc = peerbuf_next_event(ctx_, &event);
		EXPECT_PB_OK(rc);
		if (rc != 1)
			return all;
		all.push_back(event);
	}
}

bool World::progressUntil(const std::function<bool()> &done, std::vector<peerbuf_event> *ret_events)
{
	const auto deadline = std::chrono::steady_clock::now() + patience;
	for (;;) {
		const int did = peerbuf_progress(ctx_);
		EXPECT_PB_OK(did);
		if (ret_events) {
			for (const peerbuf_event &event : events())
				ret_events->push_back(event);
		}
		if (done())
			return true;
		if (std::chrono::steady_clock::now() > deadline)
			return false;
		if (did == 0) {
			// short, since a test's own engine is no source of events for the context
			pollfd wait = {peerbuf_event_fd(ctx_), POLLIN, 0};
			poll(&wait, 1, 10);
		}
	}
}

testing::AssertionResult World::nothingHeld() const
{
	testing::AssertionResult zero = test::ledgerIsZero(ctx_);
	if (!zero)
		return zero;
	for (const auto &exporter : exporters_) {
		if (exporter->gone || !HAS_OP(exporter->ops, stats))
			continue;
		const peerbuf_exporter_stats s = exporter->stats();
		if (s.attachments || s.pins || s.mappings || s.exports || s.violations)
			return testing::AssertionFailure()
			       << "exporter " << exporter->spec.text() << " has attachments "
			       << s.attachments << ", pins " << s.pins << ", mappings "
			       << s.mappings << ", exports " << s.exports << ", violations "
			       << s.violations;
	}
	for (const auto &importer : importers_) {
		if (!HAS_OP(importer->ops, stats))
			continue;
		const peerbuf_importer_stats s = importer->stats();
		if (s.regions || s.keys_used || s.translations || s.violations)
			return testing::AssertionFailure()
			       << "importer " << importer->spec.text() << " has regions "
			       << s.regions << ", keys " << s.keys_used << ", translations "
			       << s.translations << ", violations " << s.violations;
	}
	return testing::AssertionSuccess();
}

void World::close()
{
	if (!ctx_)
		return;
	deregisterAll();
	EXPECT_PB_OK(peerbuf_progress(ctx_));
	EXPECT_TRUE(nothingHeld());
	for (const auto &[buffer, exporter] : buffers_) {
		const int rc = peerbuf_free(ctx_, buffer.id);
		if (!exporter->gone) {
			EXPECT_TRUE(test::succeeded("peerbuf_free", rc));
		}
	}
	buffers_.clear();
	for (const auto &exporter : exporters_) {
		if (exporter->gone || !HAS_OP(exporter->ops, stats))
			continue;
		const peerbuf_exporter_stats s = exporter->stats();
		EXPECT_EQ(0u, s.buffers) << exporter->spec.text();
		EXPECT_EQ(0u, s.memory_used) << exporter->spec.text();
		EXPECT_EQ(0u, s.window_used) << exporter->spec.text();
		EXPECT_EQ(0u, s.quarantined) << exporter->spec.text();
	}
	for (const auto &importer : importers_)
		EXPECT_PB_OK(peerbuf_importer_close(ctx_, importer->id));
	for (const auto &exporter : exporters_)
		EXPECT_PB_OK(peerbuf_exporter_close(ctx_, exporter->id));
	closeAtOnce();
}

void World::closeAtOnce()
{
	if (!ctx_)
		return;
	EXPECT_PB_OK(peerbuf_close(ctx_));
	ctx_ = nullptr;
	regs_.clear();
	buffers_.clear();
	importers_.clear(); // ends the application's objects as well
	exporters_.clear();
	log_.check();
	EXPECT_TRUE(test::nothingLeaked(before_));
}

} // namespace peerbuf::contract
