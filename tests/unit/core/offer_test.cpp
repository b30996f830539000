// SPDX-License-Identifier: BSD-3-Clause
#include "core/offer.h"

#include <cerrno>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "offers.h"

namespace peerbuf
{
namespace
{

using namespace test;

Error refusalOfExporter(const peerbuf_exporter_offer &offer, uint32_t caps = ALL_EXPORTER_CAPS)
{
	const Result<void> result = validate(offer, caps, "exporter hbm0");
	EXPECT_FALSE(result) << "the offer was believed";
	return result ? Error{} : result.error();
}

Error refusalOfImporter(const peerbuf_importer_offer &offer, uint32_t caps = ALL_IMPORTER_CAPS)
{
	const Result<void> result = validate(offer, caps, "importer nic0");
	EXPECT_FALSE(result) << "the offer was believed";
	return result ? Error{} : result.error();
}

/** Refused as a plugin's fault, and the sentence has every fact. */
void expectNamed(const Error &error, const std::vector<std::string> &facts)
{
	EXPECT_EQ(PEERBUF_ERR_BAD_PLUGIN, error.code);
	EXPECT_EQ(EINVAL, error.sysErrno);
	for (const std::string &fact : facts)
		EXPECT_TRUE(has(error.what, fact)) << "'" << fact << "' is not in: " << error.what;
}

TEST(ExporterOffer, GivenEachKindOfExporterThenBelieved)
{
	for (const ExporterSide &e :
	     {movingExporter(), staticExporter(), revokingExporter(), unpinnableExporter(),
	      managedByKernel(movingExporter()), managedByKernel(revokingExporter())}) {
		const Result<void> result = validate(e.offer, ALL_EXPORTER_CAPS, e.name);
		EXPECT_TRUE(result) << result.error().what;
	}
}

TEST(ExporterOffer, GivenAZeroedOfferThenRefusedAndTheFirstForgottenFieldNamed)
{
	expectNamed(refusalOfExporter({}), {"exporter hbm0", "stability", "not set"});
}

TEST(ExporterOffer, GivenAnEnumerationNotSetOrUnknownThenRefusedByName)
{
	struct {
		const char *field;
		uint32_t peerbuf_exporter_offer::*member;
		uint32_t beyond;
	} const fields[] = {
		{"stability", &peerbuf_exporter_offer::stability, PEERBUF_STABILITY_MOVES + 1},
		{"pin", &peerbuf_exporter_offer::pin, PEERBUF_PIN_REFUSES + 1},
		{"revoke", &peerbuf_exporter_offer::revoke, PEERBUF_REVOKE_MAY + 1},
		{"management", &peerbuf_exporter_offer::management, PEERBUF_MANAGED_BY_KERNEL + 1},
	};
	for (const auto &f : fields) {
		peerbuf_exporter_offer offer = movingExporter().offer;
		offer.*f.member = 0;
		expectNamed(refusalOfExporter(offer), {f.field, "is 0", "not set"});
		offer.*f.member = f.beyond;
		expectNamed(refusalOfExporter(offer),
			    {f.field, std::to_string(f.beyond), "not one of its values"});
	}
}

TEST(ExporterOffer, GivenBitsEmptyOrUnknownThenRefusedByName)
{
	struct {
		const char *field;
		uint32_t peerbuf_exporter_offer::*member;
	} const fields[] = {
		{"placements", &peerbuf_exporter_offer::placements},
		{"variants", &peerbuf_exporter_offer::variants},
		{"handles", &peerbuf_exporter_offer::handles},
	};
	for (const auto &f : fields) {
		peerbuf_exporter_offer offer = movingExporter().offer;
		offer.*f.member |= 0x100;
		expectNamed(refusalOfExporter(offer), {f.field, "unknown", "0x100"});
		offer.*f.member = 0;
		expectNamed(refusalOfExporter(offer), {f.field, "is 0"});
	}
}

TEST(ExporterOffer, GivenMovesAndPinNotNeededThenBothNamed)
{
	peerbuf_exporter_offer offer = movingExporter().offer;
	offer.pin = PEERBUF_PIN_NOT_NEEDED;
	expectNamed(refusalOfExporter(offer), {"moves", "pin", "not needed"});
}

TEST(ExporterOffer, GivenPinWithoutItsSlotsThenBothNamed)
{
	expectNamed(refusalOfExporter(movingExporter().offer,
				      ALL_EXPORTER_CAPS & ~PEERBUF_EXPORTER_CAP_PIN),
		    {"pin says it can", "no PIN capability"});
	// behind a kernel driver the kernel pins; the plugin needs no slot for it
	EXPECT_TRUE(validate(managedByKernel(movingExporter()).offer, PEERBUF_EXPORTER_CAP_FD,
			     "exporter"));
}

TEST(ExporterOffer, GivenHandlesWithoutTheirSlotsThenBothNamed)
{
	const uint32_t noMap = ALL_EXPORTER_CAPS & ~PEERBUF_EXPORTER_CAP_MAP;
	peerbuf_exporter_offer offer = movingExporter().offer;
	offer.handles = PEERBUF_HANDLE_SEGMENTS;
	expectNamed(refusalOfExporter(offer, noMap), {"handles", "segments", "no MAP capability"});
	offer.handles = PEERBUF_HANDLE_CPU;
	expectNamed(refusalOfExporter(offer, noMap), {"handles", "cpu", "no MAP capability"});
	offer.handles = PEERBUF_HANDLE_FD;
	EXPECT_TRUE(validate(offer, noMap, "exporter"));
	expectNamed(refusalOfExporter(offer, ALL_EXPORTER_CAPS & ~PEERBUF_EXPORTER_CAP_FD),
		    {"handles", "dma-buf", "no FD capability"});
}

TEST(ExporterOffer, GivenMovesOrRevokesWithoutInvalidateThenBothNamed)
{
	const uint32_t deaf = ALL_EXPORTER_CAPS & ~PEERBUF_EXPORTER_CAP_INVALIDATE;
	expectNamed(refusalOfExporter(movingExporter().offer, deaf),
		    {"moves", "revoked", "no INVALIDATE capability"});
	expectNamed(refusalOfExporter(revokingExporter().offer, deaf),
		    {"moves", "revoked", "no INVALIDATE capability"});
	EXPECT_TRUE(validate(staticExporter().offer, deaf, "exporter"));
	EXPECT_TRUE(validate(managedByKernel(movingExporter()).offer, deaf, "exporter"));
}

TEST(ExporterOffer, GivenKernelManagedMemoryByAnythingButADmaBufThenBothNamed)
{
	peerbuf_exporter_offer offer = managedByKernel(movingExporter()).offer;
	offer.handles |= PEERBUF_HANDLE_CPU;
	expectNamed(refusalOfExporter(offer), {"kernel", "cpu+dma-buf"});
}

TEST(ExporterOffer, GivenPeerToPeerNeededForHostMemoryThenBothNamed)
{
	peerbuf_exporter_offer offer = movingExporter().offer;
	offer.placements = PEERBUF_PLACEMENT_HOST;
	offer.needs_peer2peer = 1;
	expectNamed(refusalOfExporter(offer), {"needs_peer2peer", "placements lacks device"});
}

TEST(ExporterOffer, GivenGranularityThatIsNoPageThenRefused)
{
	peerbuf_exporter_offer offer = movingExporter().offer;
	for (const uint64_t bad : {uint64_t{0}, uint64_t{1}, uint64_t{2048}, uint64_t{4097},
				   uint64_t{12288}, UINT64_MAX}) {
		offer.granularity = bad;
		expectNamed(refusalOfExporter(offer),
			    {"granularity is " + std::to_string(bad), "power of two", "4096"});
	}
	for (const uint64_t good : {uint64_t{4096}, uint64_t{65536}, uint64_t{1} << 63}) {
		offer.granularity = good;
		EXPECT_TRUE(validate(offer, ALL_EXPORTER_CAPS, "exporter")) << good;
	}
}

TEST(ExporterOffer, GivenReserveLargerThanTheWindowThenBothNumbersNamed)
{
	peerbuf_exporter_offer offer = movingExporter().offer;
	offer.window_size = 1000;
	offer.window_reserve = 1001;
	expectNamed(refusalOfExporter(offer), {"window_reserve 1001", "window_size 1000"});
	offer.window_reserve = 1000;
	EXPECT_TRUE(validate(offer, ALL_EXPORTER_CAPS, "exporter"));
	offer.window_size = 0; // no window that limits: a reserve means nothing
	EXPECT_TRUE(validate(offer, ALL_EXPORTER_CAPS, "exporter"));
}

TEST(ExporterOffer, GivenNamesEmptyOrNotTerminatedThenRefused)
{
	peerbuf_exporter_offer offer = movingExporter().offer;
	offer.device[0] = '\0';
	expectNamed(refusalOfExporter(offer), {"device has no name"});
	memset(offer.device, 'x', sizeof(offer.device));
	expectNamed(refusalOfExporter(offer), {"device has no name"});
	offer = movingExporter().offer;
	memset(offer.why, 'x', sizeof(offer.why));
	expectNamed(refusalOfExporter(offer), {"why is not terminated"});
}

TEST(ImporterOffer, GivenEachKindOfImporterThenBelieved)
{
	for (const ImporterSide &i : {refaultImporter(), revocableImporter(), plainImporter(),
				      toldByKernel(refaultImporter())}) {
		const Result<void> result = validate(i.offer, ALL_IMPORTER_CAPS, i.name);
		EXPECT_TRUE(result) << result.error().what;
	}
}

TEST(ImporterOffer, GivenRefaultWithoutRevocableThenBothNamed)
{
	peerbuf_importer_offer offer = refaultImporter().offer;
	offer.invalidation = PEERBUF_INVALIDATION_REFAULT;
	expectNamed(refusalOfImporter(offer), {"importer nic0", "refault", "revocable"});
	offer.invalidation = 0x80;
	expectNamed(refusalOfImporter(offer), {"invalidation", "0x80"});
}

TEST(ImporterOffer, GivenInvalidationWithoutScopeOrNotifierThenRefused)
{
	peerbuf_importer_offer offer = revocableImporter().offer;
	offer.invalidate_scope = 0;
	expectNamed(refusalOfImporter(offer), {"invalidate_scope", "not set"});
	offer.invalidate_scope = PEERBUF_SCOPE_WHOLE + 1;
	expectNamed(refusalOfImporter(offer), {"invalidate_scope", "3"});
	offer = revocableImporter().offer;
	offer.notified_by = 0;
	expectNamed(refusalOfImporter(offer), {"invalidation", "notified_by"});
	offer.notified_by = 0x10;
	expectNamed(refusalOfImporter(offer), {"notified_by", "0x10"});
}

TEST(ImporterOffer, GivenNoInvalidationThenScopeAndNotifierAreNotRead)
{
	peerbuf_importer_offer offer = plainImporter().offer;
	offer.invalidate_scope = 77;
	offer.notified_by = 77;
	EXPECT_TRUE(validate(offer, 0, "importer"));
}

TEST(ImporterOffer, GivenInvalidationWithoutItsSlotsThenBothNamed)
{
	expectNamed(refusalOfImporter(revocableImporter().offer, PEERBUF_IMPORTER_CAP_RESUME),
		    {"revocable", "no INVALIDATE capability"});
	expectNamed(refusalOfImporter(refaultImporter().offer, PEERBUF_IMPORTER_CAP_INVALIDATE),
		    {"refault", "no RESUME capability"});
	EXPECT_TRUE(validate(revocableImporter().offer, PEERBUF_IMPORTER_CAP_INVALIDATE, "i"));
	// the kernel tells such a NIC itself
	EXPECT_TRUE(validate(toldByKernel(refaultImporter()).offer, 0, "importer"));
}

TEST(ImporterOffer, GivenAFieldThatTakesNothingThenRefusedByName)
{
	struct {
		const char *fact;
		std::function<void(peerbuf_importer_offer &)> spoil;
	} const cases[] = {
		{"variants is 0", [](auto &o) { o.variants = 0; }},
		{"variants has unknown bits 0x20", [](auto &o) { o.variants |= 0x20; }},
		{"handles is 0", [](auto &o) { o.handles = 0; }},
		{"handles has unknown bits 0x20", [](auto &o) { o.handles |= 0x20; }},
		{"dma_mask_bits is 0", [](auto &o) { o.dma_mask_bits = 0; }},
		{"dma_mask_bits is 65", [](auto &o) { o.dma_mask_bits = 65; }},
		{"page_sizes is 0", [](auto &o) { o.page_sizes = 0; }},
		{"max_length is 0", [](auto &o) { o.max_length = 0; }},
		{"device has no name", [](auto &o) { o.device[0] = '\0'; }},
		{"device has no name", [](auto &o) { memset(o.device, 'x', sizeof(o.device)); }},
		{"why is not terminated", [](auto &o) { memset(o.why, 'x', sizeof(o.why)); }},
	};
	for (const auto &c : cases) {
		peerbuf_importer_offer offer = refaultImporter().offer;
		c.spoil(offer);
		expectNamed(refusalOfImporter(offer), {c.fact});
	}
}

TEST(ImporterOffer, GivenNoKeyLeftThenTheOfferIsStillTrue)
{
	peerbuf_importer_offer offer = refaultImporter().offer;
	offer.keys_left = 0; // negotiation refuses, the plugin does nothing wrong
	EXPECT_TRUE(validate(offer, ALL_IMPORTER_CAPS, "importer"));
}

} // namespace
} // namespace peerbuf
