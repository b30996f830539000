// SPDX-License-Identifier: BSD-3-Clause
/**
 * @file open_test.cpp
 * What is refused before any memory is touched, and what the importer says it can do.
 */
#include <cerrno>
#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "stand_in_domain.h"
#include "support.h"

namespace peerbuf::test
{
namespace
{

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Outcome {
	int err = 0;
	std::string why;
	uint32_t errc = 0;
};

Outcome tryOpen(const peerbuf_fabric_objects *objects, const Params &params = {})
{
	FakeHost host;
	Outcome outcome;
	const auto importer = OpenImporter::open(host, objects, params, &outcome.err);
	outcome.why = host.why();
	outcome.errc = host.errc();
	return outcome;
}

Outcome tryOpen(StandInDomain &domain, const Params &params = {})
{
	const auto objects = objectsOf(domain.domain(), domain.info(), domain.ep());
	return tryOpen(&objects, params);
}

TEST(FabricPlugin, TableKeepsTheRuleOfCapabilityAndSlot)
{
	const auto *plugin = loadPlugin();
	ASSERT_NE(plugin, nullptr);
	EXPECT_EQ(plugin->struct_size, sizeof(*plugin));
	EXPECT_EQ(plugin->abi_version, PEERBUF_ABI_VERSION);
	EXPECT_STREQ(plugin->name, "fabric");
	EXPECT_EQ(plugin->capabilities, PEERBUF_IMPORTER_CAP_OPS | PEERBUF_IMPORTER_CAP_INVALIDATE |
						PEERBUF_IMPORTER_CAP_RESUME |
						PEERBUF_IMPORTER_CAP_GATE);
	EXPECT_NE(plugin->open_ops, nullptr);
	EXPECT_NE(plugin->invalidate, nullptr);
	EXPECT_NE(plugin->resume, nullptr);
	EXPECT_NE(plugin->gate, nullptr);
	EXPECT_EQ(plugin->event_fd, nullptr);
	EXPECT_EQ(plugin->progress, nullptr);
}

TEST(FabricOpen, GivenNoObjectsThenSaysWhatIsNeeded)
{
	const Outcome o = tryOpen(nullptr);
	EXPECT_EQ(o.err, -EINVAL);
	EXPECT_THAT(o.why, HasSubstr("struct peerbuf_fabric_objects with domain and info"));
}

TEST(FabricOpen, GivenIncompleteObjectsThenNamesTheField)
{
	StandInDomain d("tcp;ofi_rxm", 0);
	auto objects = objectsOf(d.domain(), d.info(), nullptr);

	objects.struct_size = 12;
	Outcome o = tryOpen(&objects);
	EXPECT_EQ(o.err, -EINVAL);
	EXPECT_THAT(o.why, AllOf(HasSubstr("struct_size is 12"), HasSubstr("at least 32")));

	objects = objectsOf(nullptr, d.info(), nullptr);
	o = tryOpen(&objects);
	EXPECT_EQ(o.err, -EINVAL);
	EXPECT_THAT(o.why, HasSubstr("domain is NULL"));

	objects = objectsOf(d.domain(), nullptr, nullptr);
	o = tryOpen(&objects);
	EXPECT_EQ(o.err, -EINVAL);
	EXPECT_THAT(o.why, HasSubstr("info is NULL"));

	free(d.info()->fabric_attr->prov_name);
	d.info()->fabric_attr->prov_name = nullptr;
	o = tryOpen(d);
	EXPECT_EQ(o.err, -EINVAL);
	EXPECT_THAT(o.why, HasSubstr("names no provider"));
}

TEST(FabricOpen, GivenUnknownProviderThenNamesItAndTheList)
{
	StandInDomain d("warp;ofi_drive", 0);
	const Outcome o = tryOpen(d);
	EXPECT_EQ(o.err, -EOPNOTSUPP);
	EXPECT_EQ(o.errc, PEERBUF_ERR_UNSUPPORTED_DRIVER);
	EXPECT_THAT(o.why, AllOf(HasSubstr("'warp;ofi_drive'"), HasSubstr("tcp;ofi_rxm"),
				 HasSubstr("shm"), HasSubstr("verbs")));
}

TEST(FabricOpen, GivenHardwareProviderWithoutDmabufThenSaysWhatIsMissing)
{
	StandInDomain d("verbs", FI_MR_VIRT_ADDR | FI_MR_PROV_KEY | FI_MR_ALLOCATED);
	Outcome o = tryOpen(d);
	EXPECT_EQ(o.err, -EOPNOTSUPP);
	EXPECT_EQ(o.errc, PEERBUF_ERR_UNSUPPORTED_DRIVER);
#ifdef FI_MR_DMABUF
	EXPECT_THAT(o.why, HasSubstr("without FI_HMEM"));
	d.info()->caps |= FI_HMEM;
	d.info()->fabric_attr->api_version = FI_VERSION(1, 19);
	o = tryOpen(d);
	EXPECT_EQ(o.err, -EOPNOTSUPP);
	EXPECT_THAT(o.why, AllOf(HasSubstr("API version 1.19"), HasSubstr("needs 1.20")));
#else
	EXPECT_THAT(o.why, HasSubstr("headers, which lack FI_MR_DMABUF"));
#endif
}

TEST(FabricOpen, GivenEndpointModeWithoutEndpointThenSaysSo)
{
	StandInDomain d("tcp", FI_MR_ENDPOINT);
	const auto objects = objectsOf(d.domain(), d.info(), nullptr);
	const Outcome o = tryOpen(&objects);
	EXPECT_EQ(o.err, -EINVAL);
	EXPECT_THAT(o.why, AllOf(HasSubstr("FI_MR_ENDPOINT"), HasSubstr("objects.ep is NULL")));
}

TEST(FabricOpen, GivenPeersThatNeedNoKeyThenRefusedUnlessPromised)
{
	for (const char *provider : {"shm", "sm2"}) {
		StandInDomain d(provider, FI_MR_VIRT_ADDR);
		const Outcome o = tryOpen(d);
		EXPECT_EQ(o.err, -EOPNOTSUPP);
		EXPECT_THAT(o.why, AllOf(HasSubstr("CMA"), HasSubstr("peers_without_cma=yes")));
		EXPECT_EQ(tryOpen(d, {{"peers_without_cma", "yes"}}).err, 0);
		StandInDomain byOffset(provider, 0);
		EXPECT_EQ(tryOpen(byOffset).err, 0);
	}
}

TEST(FabricOpen, GivenBadOptionsThenNamesThem)
{
	StandInDomain d("tcp", 0);
	Outcome o = tryOpen(d, {{"colour", "red"}});
	EXPECT_EQ(o.err, -EINVAL);
	EXPECT_THAT(o.why, AllOf(HasSubstr("'colour'"), HasSubstr("key_base")));

	o = tryOpen(d, {{"key_base", "many"}});
	EXPECT_EQ(o.err, -EINVAL);
	EXPECT_THAT(o.why, HasSubstr("key_base='many'"));

	d.info()->domain_attr->mr_key_size = 4;
	o = tryOpen(d, {{"key_base", "0x100000000"}});
	EXPECT_EQ(o.err, -EINVAL);
	EXPECT_THAT(o.why, AllOf(HasSubstr("have 4 bytes"), HasSubstr("0xffffffff")));
	EXPECT_EQ(tryOpen(d, {{"key_base", "0xffffffff"}}).err, 0);

	StandInDomain own("tcp", FI_MR_PROV_KEY);
	o = tryOpen(own, {{"key_base", "7"}});
	EXPECT_EQ(o.err, -EINVAL);
	EXPECT_THAT(o.why, HasSubstr("FI_MR_PROV_KEY"));
}

peerbuf_importer_offer offerOf(StandInDomain &d)
{
	FakeHost host;
	int err = 0;
	const auto objects = objectsOf(d.domain(), d.info(), d.ep());
	const auto importer = OpenImporter::open(host, &objects, {}, &err);
	EXPECT_EQ(err, 0) << host.why();
	return importer ? importer->offer() : peerbuf_importer_offer{};
}

TEST(FabricOffer, GivenTcpThenPinnedSoftwareWithTheReason)
{
	StandInDomain d("tcp;ofi_rxm", 0);
	const auto offer = offerOf(d);
	EXPECT_EQ(offer.invalidation, 0u);
	EXPECT_EQ(offer.software, 1u);
	EXPECT_EQ(offer.handles, PEERBUF_HANDLE_CPU);
	EXPECT_EQ(offer.peer2peer, 1u);
	EXPECT_EQ(offer.dma_mask_bits, 64u);
	EXPECT_EQ(offer.access, readWrite);
	EXPECT_EQ(offer.max_length, PEERBUF_UNLIMITED);
	EXPECT_EQ(offer.keys_left, PEERBUF_UNLIMITED);
	EXPECT_EQ(offer.variants, PEERBUF_VARIANT_HOST | PEERBUF_VARIANT_PCIE);
	EXPECT_STREQ(offer.device, "fabric:stand-in");
	EXPECT_THAT(offer.why, HasSubstr("not under peerbuf's control"));
}

TEST(FabricOffer, GivenShmThenSaysThatPeersPassAnyGate)
{
	StandInDomain d("shm", 0);
	const auto offer = offerOf(d);
	EXPECT_EQ(offer.invalidation, 0u);
	EXPECT_EQ(offer.peer2peer, 0u);
	EXPECT_THAT(offer.why, HasSubstr("peers may copy by CMA past any gate"));
}

TEST(FabricOffer, GivenCapabilitiesThenAccessFollowsThem)
{
	StandInDomain d("tcp", 0);
	d.info()->caps |= FI_ATOMIC;
	EXPECT_EQ(offerOf(d).access, readWrite | PEERBUF_ACCESS_REMOTE_ATOMIC);
	d.info()->caps = FI_MSG | FI_RMA | FI_REMOTE_READ;
	EXPECT_EQ(offerOf(d).access, PEERBUF_ACCESS_LOCAL_WRITE | PEERBUF_ACCESS_REMOTE_READ);
}

TEST(FabricOffer, GivenCallerWithAShorterStructThenNotAByteMoreIsWritten)
{
	StandInDomain d("tcp", 0);
	FakeHost host;
	const auto *plugin = loadPlugin();
	ASSERT_NE(plugin, nullptr);
	const auto objects = objectsOf(d.domain(), d.info(), d.ep());
	void *importer = nullptr;
	ASSERT_EQ(plugin->open(host.raw(), nullptr, 0, &objects, &importer), 0);
	peerbuf_importer_offer offer;
	std::memset(&offer, 0x5a, sizeof(offer));
	offer.struct_size = offsetof(peerbuf_importer_offer, page_sizes);
	EXPECT_EQ(plugin->offer(importer, &offer), 0);
	EXPECT_EQ(offer.struct_size, offsetof(peerbuf_importer_offer, page_sizes));
	EXPECT_EQ(offer.software, 1u);
	EXPECT_EQ(offer.page_sizes, 0x5a5a5a5a5a5a5a5au);
	plugin->close(importer);
}

} // namespace
} // namespace peerbuf::test
