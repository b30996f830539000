// SPDX-License-Identifier: BSD-3-Clause
#include <cerrno>
#include <cstring>

#include <gtest/gtest.h>

#include "serving_host.h"

using namespace peerbuf::test;

TEST(Plugin, GivenTheTableThenEveryCapabilityHasItsSlots)
{
	const peerbuf_importer_plugin &plugin = emulatedPlugin();
	EXPECT_EQ(plugin.struct_size, sizeof(plugin));
	EXPECT_EQ(plugin.abi_version, PEERBUF_ABI_VERSION);
	EXPECT_STREQ(plugin.name, "emulated");
	EXPECT_NE(std::string(plugin.description).find("emulated"), std::string::npos);
	EXPECT_EQ((plugin.capabilities & PEERBUF_IMPORTER_CAP_INVALIDATE) != 0,
		  plugin.invalidate != nullptr);
	EXPECT_EQ((plugin.capabilities & PEERBUF_IMPORTER_CAP_RESUME) != 0,
		  plugin.resume != nullptr);
	EXPECT_EQ((plugin.capabilities & PEERBUF_IMPORTER_CAP_EVENTS) != 0,
		  plugin.progress != nullptr);
	EXPECT_EQ((plugin.capabilities & PEERBUF_IMPORTER_CAP_OPS) != 0,
		  plugin.open_ops != nullptr);
}

TEST(Options, GivenABadOneThenRefusedInWords)
{
	const struct {
		const char *key;
		const char *value;
		const char *says;
	} cases[] = {
		{"nonsense", "1", "there are: name, engine"},
		{"engine", "steam", "stepped, thread"},
		{"seed", "x", "whole number"},
		{"mtu", "63", "64 to"},
		{"mtu", "2M", "1048576"},
		{"queue_depth", "0", "from 1"},
		{"posted_writes", "0", "from 1"},
		{"early_completion", "perhaps", "yes, no"},
		{"profile", "all", "refault, revocable, neither"},
		{"scope", "half", "range, whole"},
		{"fault_window", "100", "4096"},
		{"peer2peer", "2", "yes, no"},
		{"variants", "host+moon", "'moon' is not one of host, pcie"},
		{"variants", "", "'' is not one of"},
		{"access", "remote_read+fly", "'fly'"},
		{"page_sizes", "3K", "'3K'"},
		{"page_sizes", "2K", "'2K'"},
		{"page_sizes", "4K+", "''"},
		{"page_sizes", "9999999G", "'9999999G'"},
		{"max_length", "0", "from 1"},
		{"dma_mask", "0", "from 1 to 64"},
		{"dma_mask", "65", "from 1 to 64"},
		{"keys", "0", "from 1"},
		{"iommu", "on", "identity, translating"},
		{"mutant", "godzilla",
		 "none, ticket_lost, ticket_double, ticket_before_drain, offset_dropped, "
		 "first_segment_only, key_reuse_after_revoke, p2p_flag_ignored, "
		 "stale_translation_after_resume, no_resume_after_abort"},
		{"name", "", "0 characters"},
	};
	for (const auto &c : cases) {
		ServingHost host(4);
		const OpenNic nic(host, {{c.key, c.value}});
		EXPECT_EQ(nic.rc(), -EINVAL) << c.key << "=" << c.value;
		EXPECT_EQ(host.lastErrc(), static_cast<uint32_t>(PEERBUF_ERR_INVALID_ARGUMENT));
		EXPECT_NE(host.lastFailure().find(c.says), std::string::npos) << host.lastFailure();
		EXPECT_NE(host.lastFailure().find(c.key), std::string::npos) << host.lastFailure();
	}
}

TEST(Options, GivenEveryOptionThenItHasALineOfHelp)
{
	ServingHost host(4);
	const OpenNic nic(host, {{"nonsense", ""}});
	std::string list = host.lastFailure();
	list = list.substr(list.find("there are: ") + 11) + ", ";
	for (size_t comma; (comma = list.find(", ")) != std::string::npos;
	     list = list.substr(comma + 2)) {
		const std::string start = list.substr(0, comma) + ": ";
		bool found = false;
		for (const char *const *line = emulatedPlugin().options; *line; line++)
			found = found || std::string(*line).starts_with(start);
		EXPECT_TRUE(found) << start;
	}
}

TEST(Options, GivenObjectsOfTheApplicationThenRefused)
{
	ServingHost host(4);
	void *nic = nullptr;
	EXPECT_EQ(emulatedPlugin().open(&host, nullptr, 0, &host, &nic), -EINVAL);
	EXPECT_EQ(nic, nullptr);
	EXPECT_NE(host.lastFailure().find("objects"), std::string::npos);
}

TEST(Offer, GivenDefaultsThenEveryFieldIsFilled)
{
	ServingHost host(4);
	OpenNic nic(host, {});
	ASSERT_EQ(nic.rc(), 0) << host.lastFailure();
	const peerbuf_importer_offer offer = nic.offer();
	EXPECT_EQ(offer.invalidation, static_cast<uint32_t>(PEERBUF_INVALIDATION_REFAULT |
							    PEERBUF_INVALIDATION_REVOCABLE));
	EXPECT_EQ(offer.invalidate_scope, static_cast<uint32_t>(PEERBUF_SCOPE_RANGE));
	EXPECT_EQ(offer.notified_by, PEERBUF_NOTIFIED_BY_USER);
	EXPECT_EQ(offer.peer2peer, 1u);
	EXPECT_EQ(offer.variants, PEERBUF_VARIANT_HOST | PEERBUF_VARIANT_PCIE);
	EXPECT_EQ(offer.handles, PEERBUF_HANDLE_SEGMENTS);
	EXPECT_EQ(offer.access, PEERBUF_ACCESS_LOCAL_WRITE | PEERBUF_ACCESS_REMOTE_READ |
					PEERBUF_ACCESS_REMOTE_WRITE | PEERBUF_ACCESS_REMOTE_ATOMIC |
					PEERBUF_ACCESS_RELAXED_ORDERING);
	EXPECT_EQ(offer.dma_mask_bits, 64u);
	EXPECT_EQ(offer.merges_segments, 1u);
	EXPECT_EQ(offer.max_segments, 0u);
	EXPECT_EQ(offer.software, 1u);
	EXPECT_EQ(offer.locks_host_memory, 0u);
	EXPECT_EQ(offer.page_sizes, 0x1000u | 0x200000u);
	EXPECT_EQ(offer.max_length, PEERBUF_UNLIMITED);
	EXPECT_EQ(offer.resume_cost_ns, 0u);
	EXPECT_EQ(offer.keys_left, 4096u);
	EXPECT_STREQ(offer.device, "emulated-nic");
	EXPECT_STREQ(offer.why, "");
}

TEST(Offer, GivenOptionsThenTheOfferSaysSo)
{
	ServingHost host(4);
	OpenNic nic(host, {{"name", "n7"},
			   {"profile", "revocable"},
			   {"scope", "whole"},
			   {"peer2peer", "no"},
			   {"variants", "pcie"},
			   {"access", "remote_read"},
			   {"page_sizes", "64K+2M"},
			   {"max_length", "1M"},
			   {"dma_mask", "44"},
			   {"merges", "no"},
			   {"max_segments", "9"},
			   {"keys", "3"},
			   {"locks_host_memory", "yes"}});
	ASSERT_EQ(nic.rc(), 0) << host.lastFailure();
	const peerbuf_importer_offer offer = nic.offer();
	EXPECT_EQ(offer.invalidation, PEERBUF_INVALIDATION_REVOCABLE);
	EXPECT_EQ(offer.invalidate_scope, static_cast<uint32_t>(PEERBUF_SCOPE_WHOLE));
	EXPECT_EQ(offer.peer2peer, 0u);
	EXPECT_EQ(offer.variants, PEERBUF_VARIANT_PCIE);
	EXPECT_EQ(offer.access, PEERBUF_ACCESS_REMOTE_READ);
	EXPECT_EQ(offer.page_sizes, 0x10000u | 0x200000u);
	EXPECT_EQ(offer.max_length, 1u << 20);
	EXPECT_EQ(offer.dma_mask_bits, 44u);
	EXPECT_EQ(offer.merges_segments, 0u);
	EXPECT_EQ(offer.max_segments, 9u);
	EXPECT_EQ(offer.keys_left, 3u);
	EXPECT_EQ(offer.locks_host_memory, 1u);
	EXPECT_STREQ(offer.device, "n7");
	for (const char *reason : {"profile=revocable", "scope=whole", "peer2peer=no"})
		EXPECT_NE(std::string(offer.why).find(reason), std::string::npos) << offer.why;
}

TEST(Offer, GivenProfileNeitherThenItOffersNoInvalidation)
{
	ServingHost host(4);
	OpenNic nic(host, {{"profile", "neither"}});
	const peerbuf_importer_offer offer = nic.offer();
	EXPECT_EQ(offer.invalidation, 0u);
	EXPECT_EQ(offer.notified_by, 0u);
	EXPECT_NE(std::string(offer.why).find("profile=neither"), std::string::npos);
}

TEST(Offer, GivenTranslatingIommuThenTheMaskDoesNotLimitBusAddresses)
{
	ServingHost host(4);
	OpenNic nic(host, {{"iommu", "translating"}, {"dma_mask", "32"}});
	EXPECT_EQ(nic.offer().dma_mask_bits, 64u);
}

TEST(Offer, GivenAnOlderCallerThenNoByteBehindItsStructureIsWritten)
{
	ServingHost host(4);
	const OpenNic nic(host, {});
	peerbuf_importer_offer offer;
	std::memset(&offer, 0x5A, sizeof(offer));
	offer.struct_size = offsetof(peerbuf_importer_offer, handles);
	ASSERT_EQ(emulatedPlugin().offer(nic.raw(), &offer), 0);
	EXPECT_EQ(offer.struct_size, offsetof(peerbuf_importer_offer, handles));
	EXPECT_EQ(offer.peer2peer, 1u);
	EXPECT_EQ(offer.handles, 0x5A5A5A5Au);
}

TEST(Offer, GivenAFaultThenItFailsOnceWithItsErrno)
{
	ServingHost host(4);
	OpenNic nic(host, {});
	ASSERT_EQ(nic.ops().fault(nic.raw(), "offer", 1, 1, -ENODEV, 0), 0);
	nic.offer();
	peerbuf_importer_offer offer = {};
	offer.struct_size = sizeof(offer);
	EXPECT_EQ(emulatedPlugin().offer(nic.raw(), &offer), -ENODEV);
	nic.offer();
}

TEST(TestOps, GivenAnotherNameThenNotFound)
{
	ServingHost host(4);
	const OpenNic nic(host, {});
	const void *table = nullptr;
	EXPECT_EQ(emulatedPlugin().open_ops(nic.raw(), "peerbuf.test.exporter.v1", &table),
		  -ENOENT);
	EXPECT_EQ(table, nullptr);
}

TEST(TestOps, GivenAThreadThenNobodyCanStepIt)
{
	ServingHost host(4);
	const OpenNic nic(host, {{"engine", "thread"}});
	ASSERT_EQ(nic.rc(), 0) << host.lastFailure();
	EXPECT_EQ(nic.ops().post, nullptr);
	EXPECT_EQ(nic.ops().step, nullptr);
	EXPECT_EQ(nic.ops().poll, nullptr);
	EXPECT_NE(nic.ops().transfer, nullptr);
}

TEST(TestOps, GivenFaultsThatMakeNoSenseThenRefused)
{
	ServingHost host(4);
	const OpenNic nic(host, {});
	const auto &ops = nic.ops();
	EXPECT_EQ(ops.fault(nic.raw(), "lunch", 0, 1, -EIO, 0), -ENOENT);
	EXPECT_EQ(ops.fault(nic.raw(), nullptr, 0, 1, -EIO, 0), -EINVAL);
	EXPECT_EQ(ops.fault(nic.raw(), "reg", 0, 1, EIO, 0), -EINVAL);
	EXPECT_EQ(ops.fault(nic.raw(), "dereg", 0, 1, -EIO, 0), -EINVAL);
	EXPECT_EQ(ops.fault(nic.raw(), "dereg", 0, 1, 0, 1), 0);
}
