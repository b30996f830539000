// SPDX-License-Identifier: BSD-3-Clause
#include <atomic>
#include <random>
#include <thread>

#include "harness.h"

namespace peerbuf::emulated::test
{

/* Several threads on one device, one that progresses, one that revokes: balanced at the end. */
TEST(Threads, GivenAllSlotsFromManyThreadsThenEverythingComesBack)
{
	Device device("hbm=16M,profile=revokes,window=8M");
	std::atomic<bool> done{false};
	std::atomic<int> delayed{0};
	device.host.onInvalidate = [&](uint64_t buffer, const peerbuf_invalidate &inv) {
		if (delayed++ % 2)
			return 0;
		/* as the core does: from progress, maybe of another thread */
		device.slots.invalidate_done(device.handle, buffer, inv.cookie, 0);
		return -EINPROGRESS;
	};
	std::thread progressing([&] {
		while (!done)
			device.slots.progress(device.handle);
	});
	std::vector<std::thread> users;
	for (uint64_t seed = 1; seed <= 3; seed++) {
		users.emplace_back([&, seed] {
			std::mt19937_64 random(seed);
			for (int i = 0; i < 100; i++) {
				auto desc = cleared<peerbuf_buffer_desc>();
				if (device.slots.alloc(device.handle, 1 + random() % (1 << 20),
						       &desc))
					continue;
				uint64_t token = 0;
				EXPECT_EQ(0, device.attach(desc.handle, &token));
				const bool pinned = device.slots.pin(device.handle, token) == 0;
				peerbuf_mapping m;
				const bool mapped = device.map(token, 0, desc.size, &m) == 0;
				peerbuf_fd_export e;
				if (device.exportFd(token, 0, 1, &e) == 0) {
					peerbuf_buffer_desc found;
					if (device.getFd(e.fd, 0, &found) == 0) {
						EXPECT_EQ(desc.address, found.address);
						device.slots.put(device.handle, found.handle);
					}
					device.slots.release_fd(device.handle, token, &e);
				}
				if (random() % 3 == 0)
					EXPECT_EQ(0,
						  device.ops->revoke(device.handle, desc.handle));
				else
					reinterpret_cast<volatile uint8_t *>(desc.address)[0] = 1;
				if (mapped)
					device.slots.unmap(device.handle, token, &m);
				if (pinned)
					device.slots.unpin(device.handle, token);
				device.slots.detach(device.handle, token);
				EXPECT_EQ(0, device.slots.free(device.handle, desc.handle));
			}
		});
	}
	for (std::thread &user : users)
		user.join();
	done = true;
	progressing.join();
	device.slots.progress(device.handle); /* what came after its last look */
	EXPECT_TRUE(device.clean());
	EXPECT_EQ(0u, device.stats().quarantined);
	EXPECT_EQ(0, device.tryAlloc(16 << 20)) << device.why();
}

TEST(Threads, GivenRemovalWhileThreadsAreAtWorkThenAllEnd)
{
	Device device("hbm=16M");
	std::atomic<int> running{3};
	std::vector<std::thread> users;
	users.reserve(3);
	for (int i = 0; i < 3; i++) {
		users.emplace_back([&] {
			int rounds = 0;
			while (device.tryAlloc(64 << 10) == 0)
				rounds++;
			EXPECT_ERRNO(ENODEV, device.tryAlloc(4096));
			running--;
		});
	}
	for (int i = 0; i < 20; i++)
		device.slots.progress(device.handle);
	EXPECT_EQ(0, device.ops->remove(device.handle));
	for (std::thread &user : users)
		user.join();
	EXPECT_EQ(0, running);
	EXPECT_TRUE(device.clean());
}

} // namespace peerbuf::emulated::test
