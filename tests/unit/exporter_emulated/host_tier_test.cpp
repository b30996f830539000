// SPDX-License-Identifier: BSD-3-Clause
#include "harness.h"

namespace peerbuf::emulated::test
{

namespace
{

int attachWithoutPeer2peer(Device &device, uint64_t buffer, uint64_t *ret_token,
			   peerbuf_attach_reply *ret_reply)
{
	auto request = usualAttach(4096);
	request.allow_peer2peer = 0;
	return device.attach(buffer, ret_token, &request, ret_reply);
}

} // namespace

TEST(HostTier, Rule12_GivenHostMemoryOnlyThenPeer2peerIsLowered)
{
	Device device("hbm=1M,placements=host,dma_base=0x100000");
	const auto desc = device.alloc(64 << 10);
	uint64_t token = 0;
	auto request = usualAttach(4096);
	peerbuf_attach_reply reply;
	ASSERT_EQ(0, device.attach(desc.handle, &token, &request, &reply));
	EXPECT_EQ(0u, reply.peer2peer);
	EXPECT_EQ(PEERBUF_PLACEMENT_HOST, reply.placement);
	peerbuf_mapping m;
	ASSERT_EQ(0, device.map(token, 0, 65536, &m));
	EXPECT_EQ(PEERBUF_PLACEMENT_HOST, m.placement);
	EXPECT_EQ(0u, m.peer2peer);
	EXPECT_EQ(0u, device.offer().window_used) << "host memory is in no window";
	for (uint64_t i = 0; i < m.n_segments; i++) {
		EXPECT_GE(m.segments[i].dma_addr, 0x100000u + (1u << 20)) << "that is HBM";
		EXPECT_LE(m.segments[i].dma_addr + m.segments[i].length - 1,
			  device.offer().dma_addr_max);
	}
}

TEST(Mutant, GivenPeer2peerKeptThenItIsPromisedForHostMemory)
{
	for (const bool mutant : {true, false}) {
		Device device(std::string("hbm=1M,placements=host,mutant=") +
			      (mutant ? "peer2peer_kept" : "none"));
		const auto desc = device.alloc(4096);
		uint64_t token = 0;
		auto request = usualAttach(4096);
		peerbuf_attach_reply reply;
		ASSERT_EQ(0, device.attach(desc.handle, &token, &request, &reply));
		EXPECT_EQ(mutant ? 1u : 0u, reply.peer2peer);
	}
}

TEST(HostTier, GivenADeviceOnlyBufferThenAnImporterWithoutPeer2peerIsServedByTheHostRoute)
{
	Device device("hbm=1M,placements=device,peer2peer=optional");
	const auto desc = device.alloc(4096);
	uint64_t token = 0;
	peerbuf_attach_reply reply;
	ASSERT_EQ(0, attachWithoutPeer2peer(device, desc.handle, &token, &reply));
	EXPECT_EQ(0u, reply.peer2peer);
	EXPECT_EQ(PEERBUF_PLACEMENT_DEVICE, reply.placement);
}

TEST(HostTier, GivenBothPlacesThenTheImporterWithoutPeer2peerGetsItInHostMemory)
{
	Device device("hbm=1M,placements=device+host,seed=4");
	const auto desc = device.alloc(512 << 10);
	auto *memory = reinterpret_cast<uint8_t *>(desc.address);
	for (uint64_t i = 0; i < desc.size; i++)
		memory[i] = static_cast<uint8_t>(i * 31 + i / 4096);
	uint64_t token = 0;
	peerbuf_attach_reply reply;
	ASSERT_EQ(0, attachWithoutPeer2peer(device, desc.handle, &token, &reply)) << device.why();
	EXPECT_EQ(0u, reply.peer2peer);
	EXPECT_EQ(PEERBUF_PLACEMENT_HOST, reply.placement);
	/* same address, same bytes, another generation */
	peerbuf_buffer_desc now;
	ASSERT_EQ(0, device.get(desc.address, 1, &now));
	EXPECT_GT(now.generation, desc.generation);
	EXPECT_EQ(desc.address, now.address);
	for (uint64_t i = 0; i < desc.size; i++)
		ASSERT_EQ(static_cast<uint8_t>(i * 31 + i / 4096), memory[i]) << i;
	memory[0] = 0xee;
	EXPECT_EQ(0xee, device.deviceBytes(desc.handle, 0, 1)[0]);
	peerbuf_mapping m;
	ASSERT_EQ(0, device.map(token, 0, desc.size, &m));
	EXPECT_EQ(now.generation, m.generation);
	EXPECT_EQ(0xee, *static_cast<uint8_t *>(m.segments[0].cpu_addr));
	/* the HBM it left is free again: all of it fits now */
	EXPECT_EQ(0, device.tryAlloc(1 << 20)) << device.why();

	/* whoever comes later takes it where it is */
	uint64_t late = 0;
	auto request = usualAttach(4096);
	ASSERT_EQ(0, device.attach(desc.handle, &late, &request, &reply));
	EXPECT_EQ(0u, reply.peer2peer);
	EXPECT_EQ(PEERBUF_PLACEMENT_HOST, reply.placement);
	device.slots.put(device.handle, now.handle);
}

TEST(HostTier, Rule14_GivenSomebodyWhoReliesOnThePlaceThenBusy)
{
	Device device("hbm=1M,placements=device+host");
	const auto desc = device.alloc(64 << 10);
	const uint64_t first = device.attached(desc.handle);
	uint64_t token = 0;
	peerbuf_attach_reply reply;
	EXPECT_ERRNO(EBUSY, attachWithoutPeer2peer(device, desc.handle, &token, &reply));
	EXPECT_CONTAINS(device.why(), "1 attachments");
	EXPECT_EQ(1u, device.stats().attachments);
	peerbuf_mapping m;
	ASSERT_EQ(0, device.map(first, 0, 4096, &m));
	EXPECT_EQ(PEERBUF_PLACEMENT_DEVICE, m.placement);
	device.slots.unmap(device.handle, first, &m);
	device.slots.detach(device.handle, first);
	EXPECT_EQ(0, attachWithoutPeer2peer(device, desc.handle, &token, &reply)) << device.why();
}

TEST(HostTier, GivenNoRoomThereThenRefusedAndTheBufferStays)
{
	Device device("hbm=1M,host=64K,placements=device+host");
	const auto desc = device.alloc(128 << 10);
	uint64_t token = 0;
	peerbuf_attach_reply reply;
	EXPECT_ERRNO(ENOMEM, attachWithoutPeer2peer(device, desc.handle, &token, &reply));
	EXPECT_CONTAINS(device.why(), "host tier");
	EXPECT_CONTAINS(device.why(), "131072 bytes needed, 65536 of 65536 free");
	uint64_t good = 0;
	auto request = usualAttach(4096);
	ASSERT_EQ(0, device.attach(desc.handle, &good, &request, &reply));
	EXPECT_EQ(PEERBUF_PLACEMENT_DEVICE, reply.placement);
	EXPECT_EQ(1u, reply.peer2peer);
}

} // namespace peerbuf::emulated::test
