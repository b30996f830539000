// SPDX-License-Identifier: BSD-3-Clause
#include <atomic>
#include <cerrno>
#include <chrono>
#include <random>
#include <thread>

#include <gtest/gtest.h>

#include "serving_host.h"

using namespace peerbuf::test;

namespace
{

/** Writes its own part of the region and reads it back, over and over. @return wrong bytes. */
uint64_t traffic(OpenNic &nic, uint64_t key, uint64_t at, uint64_t length, uint64_t seed,
		 int rounds)
{
	std::mt19937_64 random(seed);
	uint64_t wrong = 0;
	for (int i = 0; i < rounds; i++) {
		const uint64_t size = 1 + random() % length;
		const uint64_t from = at + random() % (length - size + 1);
		Bytes sent = pattern(size, random());
		Bytes got(size);
		if (nic.transfer(Write, key, from, sent) || nic.transfer(Read, key, from, got) ||
		    got != sent)
			wrong++;
	}
	return wrong;
}

} // namespace

TEST(Thread, GivenPeersAndMovesAtOnceThenNobodyNotices)
{
	for (const char *early : {"no", "yes"}) {
		for (const char *scope : {"range", "whole"}) {
			ServingHost host(32);
			OpenNic nic(host, {{"engine", "thread"},
					   {"early_completion", early},
					   {"scope", scope},
					   {"mtu", "1024"}});
			ASSERT_EQ(nic.rc(), 0) << host.lastFailure();
			peerbuf_region region;
			ASSERT_EQ(nic.reg(nic.request(0, host.size(), 0), region), 0);
			std::atomic<uint64_t> wrong{0};
			std::atomic<int> running{3};
			std::vector<std::thread> peers;
			for (uint64_t i = 0; i < 3; i++) {
				peers.emplace_back([&, i] {
					wrong += traffic(nic, region.key64, i * 10 * page,
							 10 * page, i, 60);
					running--;
				});
			}
			std::mt19937_64 random(5);
			uint64_t moves = 0;
			while (running) {
				const uint64_t first = random() % 30;
				nic.move(first * page, (1 + random() % 2) * page);
				moves++;
				// without a breath a slow build is interrupted for minutes
				std::this_thread::sleep_for(std::chrono::microseconds(50));
			}
			for (std::thread &peer : peers)
				peer.join();
			EXPECT_EQ(wrong, 0u);
			EXPECT_GT(moves, 0u);
			RecordProperty("moves", static_cast<int>(moves));
			EXPECT_EQ(nic.stats().violations, 0u);
			nic.dereg(region);
			EXPECT_EQ(host.strayBytes(), 0u);
			EXPECT_EQ(nic.stats().keys_used, 0u);
			EXPECT_EQ(nic.stats().translations, 0u);
		}
	}
}

TEST(Thread, GivenASuspendedRegionThenATransferWaitsForTheResume)
{
	ServingHost host(8);
	OpenNic nic(host, {{"engine", "thread"}});
	peerbuf_region region;
	ASSERT_EQ(nic.reg(nic.request(0, page, 0), region), 0);
	host.suspend(0, page);
	ASSERT_EQ(nic.invalidate(PEERBUF_REASON_MOVE, 0, page), 0);
	Bytes bytes = pattern(page, 1);
	int rc = 1;
	std::thread peer([&] { rc = nic.transfer(Write, region.key64, 0, bytes); });
	while (nic.stats().in_flight == 0)
		std::this_thread::yield();
	EXPECT_EQ(host.read(0, page), Bytes(page));
	host.relocate(0, page);
	host.release(0, page);
	nic.resume(0, page);
	peer.join();
	EXPECT_EQ(rc, 0);
	EXPECT_EQ(host.read(0, page), bytes);
}

TEST(Thread, GivenRevokeAgainstTrafficThenItFailsForGoodAndMemoryStaysAsItIs)
{
	for (int round = 0; round < 30; round++) {
		ServingHost host(16);
		OpenNic nic(host,
			    {{"engine", "thread"}, {"mtu", "256"}, {"early_completion", "yes"}});
		peerbuf_region region;
		ASSERT_EQ(nic.reg(nic.request(0, host.size(), 0), region), 0);
		std::atomic<bool> started{false};
		std::thread peer([&] {
			Bytes bytes = pattern(host.size(), 1);
			int rc = 0;
			while (!rc) {
				rc = nic.transfer(Write, region.key64, 0, bytes);
				started = true;
			}
			EXPECT_EQ(rc, -EACCES);
		});
		while (!started)
			std::this_thread::yield();
		host.markRevoked();
		const int rc = nic.invalidate(PEERBUF_REASON_REVOKE, 0, host.size());
		if (rc == -EINPROGRESS)
			EXPECT_TRUE(host.waitTicket(1));
		else
			EXPECT_EQ(rc, 0);
		// let go: the exporter may give the pages to somebody else, unsynchronised
		const Bytes other(page, 0x33);
		host.write(0, other);
		peer.join();
		EXPECT_EQ(host.read(0, page), other);
		nic.dereg(region);
		EXPECT_EQ(nic.stats().violations, 0u);
		EXPECT_EQ(host.ticketsDone(1), rc ? 1u : 0u);
	}
}

TEST(Thread, GivenRegAndDeregAgainstMovesThenNothingIsLeft)
{
	ServingHost host(16);
	OpenNic nic(host, {{"engine", "thread"}, {"keys", "8"}, {"prefault", "yes"}});
	std::atomic<int> running{3};
	std::vector<std::thread> users;
	for (uint64_t i = 0; i < 3; i++) {
		users.emplace_back([&, i] {
			Bytes bytes = pattern(2 * page, i);
			for (int round = 0; round < 150; round++) {
				peerbuf_region region;
				ASSERT_EQ(nic.reg(nic.request(i * 4 * page, 4 * page, 0), region),
					  0)
					<< host.lastFailure();
				EXPECT_EQ(nic.transfer(Write, region.key64, page, bytes), 0);
				nic.dereg(region);
				EXPECT_EQ(nic.transfer(Write, region.key64, page, bytes), -EACCES);
			}
			running--;
		});
	}
	std::mt19937_64 random(9);
	while (running)
		nic.move(random() % 14 * page, 2 * page);
	for (std::thread &user : users)
		user.join();
	const peerbuf_importer_stats stats = nic.stats();
	EXPECT_EQ(stats.regions, 0u);
	EXPECT_EQ(stats.keys_used, 0u);
	EXPECT_EQ(stats.translations, 0u);
	EXPECT_EQ(stats.violations, 0u);
	EXPECT_EQ(host.strayBytes(), 0u);
	for (uint64_t i = 0; i < 3; i++)
		EXPECT_EQ(host.read((i * 4 + 1) * page, 2 * page), pattern(2 * page, i));
}

TEST(Thread, GivenCloseWithWorkWaitingThenItEnds)
{
	ServingHost host(8);
	auto nic = std::make_unique<OpenNic>(host, Params{{"engine", "thread"}});
	peerbuf_region region;
	ASSERT_EQ(nic->reg(nic->request(0, page, 0), region), 0);
	Bytes bytes = pattern(page, 1);
	ASSERT_EQ(nic->transfer(Write, region.key64, 0, bytes), 0);
	nic.reset();
	EXPECT_EQ(host.read(0, page), bytes);
}
