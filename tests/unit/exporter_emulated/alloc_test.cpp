// SPDX-License-Identifier: BSD-3-Clause
#include <map>
#include <random>
#include <set>

#include "harness.h"

namespace peerbuf::emulated::test
{

namespace
{

uint8_t *bytes(const peerbuf_buffer_desc &desc)
{
	return reinterpret_cast<uint8_t *>(desc.address);
}

} // namespace

TEST(Plugin, GivenThePluginThenItSaysEmulatedAndEverySlotIsThere)
{
	const peerbuf_exporter_plugin &p = plugin();
	EXPECT_EQ(sizeof(p), p.struct_size);
	EXPECT_EQ(PEERBUF_ABI_VERSION, p.abi_version);
	EXPECT_STREQ("emulated", p.name);
	EXPECT_CONTAINS(p.description, "emulated");
	EXPECT_EQ(0xffu, p.capabilities);
	for (const char *const *line = p.options; *line; line++)
		EXPECT_CONTAINS(*line, ": ");
}

TEST(Alloc, GivenASizeThenZeroedMemoryRoundedUpToThePage)
{
	const size_t fds = openFds(getpid());
	Device device("hbm=8M,granularity=64K");
	const auto desc = device.alloc(65537);
	EXPECT_EQ(131072u, desc.size);
	EXPECT_NE(0u, desc.handle);
	EXPECT_NE(0u, desc.generation);
	EXPECT_EQ(0u, desc.address % 4096);
	for (uint64_t i = 0; i < desc.size; i++)
		ASSERT_EQ(0, bytes(desc)[i]);
	EXPECT_EQ(131072u, device.stats().memory_used);
	EXPECT_EQ(0, device.slots.free(device.handle, desc.handle));
	EXPECT_TRUE(device.clean());
	device.close();
	EXPECT_EQ(fds, openFds(getpid()));
}

TEST(Alloc, GivenUsedMemoryThenTheNextOwnerSeesZeroes)
{
	Device device("hbm=1M");
	auto desc = device.alloc(1 << 20);
	memset(bytes(desc), 0xa5, desc.size);
	ASSERT_EQ(0, device.slots.free(device.handle, desc.handle));
	desc = device.alloc(1 << 20);
	const auto seen = device.deviceBytes(desc.handle, 0, desc.size);
	for (uint64_t i = 0; i < desc.size; i++) {
		ASSERT_EQ(0, bytes(desc)[i]);
		ASSERT_EQ(0, seen[i]);
	}
	EXPECT_EQ(0, device.slots.free(device.handle, desc.handle));
}

TEST(Alloc, GivenBadSizesThenRefusedWithTheNumbers)
{
	Device device("hbm=1M");
	EXPECT_ERRNO(EINVAL, device.tryAlloc(0));
	EXPECT_ERRNO(ENOMEM, device.tryAlloc(UINT64_MAX));
	EXPECT_CONTAINS(device.why(), "1048576");
	const auto desc = device.alloc(600 << 10);
	EXPECT_ERRNO(ENOMEM, device.tryAlloc(512 << 10));
	EXPECT_EQ(PEERBUF_ERR_NO_MEMORY, device.errc());
	EXPECT_CONTAINS(device.why(), "524288 bytes needed");
	EXPECT_CONTAINS(device.why(), "434176 of 1048576 free");
	EXPECT_CONTAINS(device.why(), device.offer().device);
	EXPECT_EQ(0, device.slots.free(device.handle, desc.handle));
	EXPECT_EQ(0, device.tryAlloc(1 << 20));
	EXPECT_TRUE(device.clean());
}

TEST(Alloc, GivenRandomUseThenContentsStayAndEverythingComesBack)
{
	for (uint64_t seed = 1; seed <= 4; seed++) {
		SCOPED_TRACE(seed);
		Device device("hbm=4M,seed=" + std::to_string(seed));
		std::mt19937_64 random(seed);
		std::map<uint64_t, peerbuf_buffer_desc> held;
		std::set<uint64_t> ids;
		uint64_t used = 0;
		const auto check = [](const peerbuf_buffer_desc &d) {
			for (uint64_t i = 0; i < d.size; i += 512)
				ASSERT_EQ(static_cast<uint8_t>(d.handle * 7), bytes(d)[i]);
		};
		for (int step = 0; step < 300; step++) {
			if (random() % 3 || held.empty()) {
				const uint64_t size = 1 + random() % (256 << 10);
				auto desc = cleared<peerbuf_buffer_desc>();
				const uint64_t rounded = (size + 4095) / 4096 * 4096;
				const int rc = device.slots.alloc(device.handle, size, &desc);
				if (used + rounded > (4u << 20)) {
					ASSERT_EQ(-ENOMEM, rc);
					continue;
				}
				ASSERT_EQ(0, rc) << device.why();
				ASSERT_TRUE(ids.insert(desc.allocation_id).second)
					<< "an identity was used twice";
				memset(bytes(desc), static_cast<uint8_t>(desc.handle * 7),
				       desc.size);
				held.emplace(desc.handle, desc);
				used += desc.size;
			} else {
				auto it = held.begin();
				std::advance(it, static_cast<long>(random() % held.size()));
				check(it->second);
				ASSERT_EQ(0, device.slots.free(device.handle, it->first));
				used -= it->second.size;
				held.erase(it);
			}
			ASSERT_EQ(used, device.stats().memory_used);
		}
		for (const auto &[handle, desc] : held) {
			check(desc);
			EXPECT_EQ(0, device.slots.free(device.handle, handle));
		}
		EXPECT_EQ(0, device.tryAlloc(4 << 20));
		EXPECT_TRUE(device.clean());
	}
}

/* More runs than one message of the device can tell. */
TEST(Alloc, GivenAFragmentedDeviceThenABufferOfHundredsOfPiecesIsStillOneRange)
{
	Device device("hbm=4M");
	std::vector<peerbuf_buffer_desc> pages;
	pages.reserve(1024);
	for (int i = 0; i < 1024; i++)
		pages.push_back(device.alloc(4096));
	for (size_t i = 0; i < pages.size(); i += 2)
		EXPECT_EQ(0, device.slots.free(device.handle, pages[i].handle));
	const auto desc = device.alloc(2 << 20);
	const uint64_t token = device.attached(desc.handle);
	peerbuf_mapping m;
	ASSERT_EQ(0, device.map(token, 0, desc.size, &m));
	EXPECT_GT(m.n_segments, 200u);
	for (uint64_t i = 0; i < desc.size; i++)
		bytes(desc)[i] = static_cast<uint8_t>(i * 7 + i / 4096);
	const auto seen = device.deviceBytes(desc.handle, 0, desc.size);
	EXPECT_EQ(0, memcmp(seen.data(), bytes(desc), desc.size));
	uint64_t at = 0;
	for (uint64_t k = 0; k < m.n_segments; k++) {
		EXPECT_EQ(0,
			  memcmp(m.segments[k].cpu_addr, bytes(desc) + at, m.segments[k].length));
		at += m.segments[k].length;
	}
	for (size_t i = 1; i < pages.size(); i += 2)
		ASSERT_EQ(0, *bytes(pages[i])) << "a neighbour was hit";
}

TEST(Free, GivenAHandleThatIsNotOursThenNotFoundAndNothingHappens)
{
	Device device("hbm=1M");
	const auto desc = device.alloc(4096);
	EXPECT_ERRNO(ENOENT, device.slots.free(device.handle, desc.handle + 1));
	EXPECT_EQ(0, device.slots.free(device.handle, desc.handle));
	EXPECT_ERRNO(ENOENT, device.slots.free(device.handle, desc.handle));
	EXPECT_CONTAINS(device.why(), std::to_string(desc.handle));
	EXPECT_TRUE(device.clean());
}

TEST(Get, GivenAnyAddressInsideThenTheWholeBufferAndAReference)
{
	Device device("hbm=1M");
	const auto desc = device.alloc(64 << 10);
	auto found = cleared<peerbuf_buffer_desc>();
	for (const uint64_t at : {0ull, 1ull, 4095ull, 65535ull}) {
		ASSERT_EQ(0, device.get(desc.address + at, 65536 - at, &found)) << device.why();
		EXPECT_EQ(desc.handle, found.handle);
		EXPECT_EQ(desc.allocation_id, found.allocation_id);
		EXPECT_EQ(desc.address, found.address);
		EXPECT_EQ(desc.size, found.size);
		device.slots.put(device.handle, found.handle);
	}
	/* rule 9: a reference outlives the free */
	ASSERT_EQ(0, device.get(desc.address, 1, &found));
	bytes(desc)[5] = 5;
	EXPECT_EQ(0, device.slots.free(device.handle, desc.handle));
	EXPECT_EQ(5, device.deviceBytes(found.handle, 5, 1)[0]);
	EXPECT_EQ(65536u, device.stats().memory_used);
	device.slots.put(device.handle, found.handle);
	EXPECT_TRUE(device.clean());
}

TEST(Get, GivenRangesThatAreNotInsideThenNamedAndNoReferenceIsLeft)
{
	Device device("hbm=1M");
	const auto desc = device.alloc(8192);
	auto found = cleared<peerbuf_buffer_desc>();
	EXPECT_ERRNO(EINVAL, device.get(desc.address + 1, 8192, &found));
	EXPECT_EQ(PEERBUF_ERR_BAD_GEOMETRY, device.errc());
	EXPECT_CONTAINS(device.why(), "8192 bytes at");
	EXPECT_ERRNO(EINVAL, device.get(desc.address, UINT64_MAX, &found));
	EXPECT_ERRNO(EINVAL, device.get(desc.address, 0, &found));
	EXPECT_ERRNO(ENOENT, device.get(desc.address + 8192, 1, &found));
	EXPECT_ERRNO(ENOENT, device.get(desc.address - 1, 1, &found));
	EXPECT_ERRNO(ENOENT, device.get(0, 1, &found));
	EXPECT_ERRNO(ENOENT, device.get(UINT64_MAX, 1, &found));
	int local = 0;
	EXPECT_ERRNO(ENOENT, device.get(reinterpret_cast<uintptr_t>(&local), 1, &found));
	EXPECT_EQ(0u, found.handle);
	EXPECT_EQ(0, device.slots.free(device.handle, desc.handle));
	EXPECT_ERRNO(ENOENT, device.get(desc.address, 1, &found));
	EXPECT_TRUE(device.clean());
}

TEST(Put, GivenOneTooManyThenItIsCountedAndTheBufferStays)
{
	Device device("hbm=1M");
	const auto desc = device.alloc(4096);
	device.slots.put(device.handle, desc.handle);
	EXPECT_EQ(1u, device.stats().violations);
	EXPECT_EQ(1u, device.stats().buffers);
	device.slots.put(device.handle, 12345);
	EXPECT_EQ(2u, device.stats().violations);
	EXPECT_EQ(2u, device.host.log(PEERBUF_LOG_WARN).size());
	EXPECT_EQ(0, device.slots.free(device.handle, desc.handle));
}

TEST(DeviceBytes, GivenOddRangesThenTheyAreTheApplicationsBytes)
{
	Device device("hbm=8M,seed=3");
	const auto desc = device.alloc(3 << 20);
	std::mt19937_64 random(3);
	for (uint64_t i = 0; i < desc.size; i++)
		bytes(desc)[i] = static_cast<uint8_t>(random());
	for (int i = 0; i < 50; i++) {
		const uint64_t offset = random() % desc.size;
		const uint64_t length = 1 + random() % (desc.size - offset);
		const auto seen = device.deviceBytes(desc.handle, offset, length);
		ASSERT_EQ(0, memcmp(seen.data(), bytes(desc) + offset, length));
		std::vector<uint8_t> written(std::min<uint64_t>(length, 9000));
		for (uint8_t &b : written)
			b = static_cast<uint8_t>(random());
		ASSERT_EQ(0, device.ops->device_write(device.handle, desc.handle, offset,
						      written.data(), written.size()));
		ASSERT_EQ(0, memcmp(written.data(), bytes(desc) + offset, written.size()));
	}
	uint8_t byte = 0;
	EXPECT_ERRNO(EINVAL,
		     device.ops->device_read(device.handle, desc.handle, desc.size, &byte, 1));
	EXPECT_ERRNO(EINVAL, device.ops->device_read(device.handle, desc.handle, 0, &byte, 0));
	EXPECT_ERRNO(EINVAL,
		     device.ops->device_write(device.handle, desc.handle, UINT64_MAX, &byte, 2));
	EXPECT_ERRNO(ENOENT, device.ops->device_read(device.handle, 999, 0, &byte, 1));
	EXPECT_EQ(0, device.slots.free(device.handle, desc.handle));
}

} // namespace peerbuf::emulated::test
