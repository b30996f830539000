// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <random>

#include "harness.h"

namespace peerbuf::emulated::test
{

namespace
{

int setPool(Device &device, uint32_t placement, uint32_t state)
{
	return device.ops->pool(device.handle, placement, state);
}

peerbuf_tenant_limits noLimits()
{
	auto limits = cleared<peerbuf_tenant_limits>();
	limits.bytes = PEERBUF_UNLIMITED;
	limits.pinned = PEERBUF_UNLIMITED;
	return limits;
}

int setLimits(Device &device, const char *tenant, const peerbuf_tenant_limits &limits)
{
	return device.ops->set_limits(device.handle, tenant, &limits);
}

peerbuf_tenant_status statusOf(Device &device, const char *tenant)
{
	auto status = cleared<peerbuf_tenant_status>();
	EXPECT_EQ(0, device.ops->tenant_status(device.handle, tenant, &status)) << device.why();
	return status;
}

std::string at(const RunningDevice &running, const std::string &tenant)
{
	return "socket=" + running.path() + ",tenant=" + tenant;
}

/** A buffer pinned whole. */
struct Pinned {
	peerbuf_buffer_desc desc;
	uint64_t token = 0;
	int rc = 0;
};

Pinned pinned(Device &device, uint64_t size)
{
	Pinned p;
	p.desc = device.alloc(size);
	auto request = usualAttach(size);
	EXPECT_EQ(0, device.attach(p.desc.handle, &p.token, &request)) << device.why();
	p.rc = device.slots.pin(device.handle, p.token);
	return p;
}

} // namespace

/* ---- pools ----------------------------------------------------------------------------------- */

TEST(Pool, GivenOfflineThenNothingIsThereAndEveryStepIsTakenInOrder)
{
	Device device("hbm=1M,pool=offline");
	EXPECT_ERRNO(ENOMEM, device.tryAlloc(4096));
	EXPECT_CONTAINS(device.why(), "offline");
	EXPECT_ERRNO(ENODEV, setLimits(device, "somebody", noLimits()));
	EXPECT_CONTAINS(device.why(), "offline");
	EXPECT_ERRNO(EINVAL, setPool(device, PEERBUF_PLACEMENT_DEVICE, PEERBUF_POOL_ONLINE));
	EXPECT_CONTAINS(device.why(), "a step at a time");

	/* policies come before anybody who could allocate */
	ASSERT_EQ(0, setPool(device, PEERBUF_PLACEMENT_DEVICE, PEERBUF_POOL_ISOLATED))
		<< device.why();
	EXPECT_ERRNO(ENOMEM, device.tryAlloc(4096));
	EXPECT_CONTAINS(device.why(), "isolated");
	auto limits = noLimits();
	limits.bytes = 8192;
	ASSERT_EQ(0, setLimits(device, "default", limits)) << device.why();

	ASSERT_EQ(0, setPool(device, PEERBUF_PLACEMENT_DEVICE, PEERBUF_POOL_ONLINE));
	EXPECT_EQ(0, device.tryAlloc(8192)) << device.why();
	EXPECT_ERRNO(ENOMEM, device.tryAlloc(8193));
	EXPECT_EQ(PEERBUF_ERR_QUOTA, device.errc());
	EXPECT_CONTAINS(device.why(), "tenant 'default' needs 12288, has allocated 0, may allocate "
				      "8192");
}

TEST(Pool, GivenMemoryInUseThenItCannotGoOffline)
{
	Device device("hbm=1M");
	const auto desc = device.alloc(64 << 10);
	const uint64_t token = device.attached(desc.handle);
	EXPECT_ERRNO(EINVAL, setPool(device, PEERBUF_PLACEMENT_DEVICE, PEERBUF_POOL_OFFLINE));
	ASSERT_EQ(0, setPool(device, PEERBUF_PLACEMENT_DEVICE, PEERBUF_POOL_ISOLATED));
	EXPECT_ERRNO(ENOMEM, device.tryAlloc(4096));
	peerbuf_mapping m;
	EXPECT_EQ(0, device.map(token, 0, 4096, &m)) << "what is there stays in use";
	EXPECT_ERRNO(ENOMEM, device.move(desc.handle, slicedMove())) << "nothing new goes into it";
	EXPECT_CONTAINS(device.why(), "isolated");
	EXPECT_ERRNO(EBUSY, setPool(device, PEERBUF_PLACEMENT_DEVICE, PEERBUF_POOL_OFFLINE));
	EXPECT_CONTAINS(device.why(), "65536 of 1048576 bytes are in use by 1 buffers");
	device.slots.unmap(device.handle, token, &m);
	device.slots.detach(device.handle, token);
	EXPECT_EQ(0, device.slots.free(device.handle, desc.handle));
	EXPECT_EQ(0, setPool(device, PEERBUF_PLACEMENT_DEVICE, PEERBUF_POOL_OFFLINE))
		<< device.why();
	EXPECT_EQ(0, setPool(device, PEERBUF_PLACEMENT_DEVICE, PEERBUF_POOL_ISOLATED));
	EXPECT_EQ(0, setPool(device, PEERBUF_PLACEMENT_DEVICE, PEERBUF_POOL_ONLINE));
	EXPECT_EQ(0, device.tryAlloc(1 << 20)) << device.why();
}

TEST(Pool, GivenTwoPoolsThenEachHasItsState)
{
	Device device("hbm=1M,host=1M,placements=device+host");
	const auto desc = device.alloc(64 << 10);
	auto request = hbmAttach(desc.size);
	uint64_t token = 0;
	ASSERT_EQ(0, device.attach(desc.handle, &token, &request));
	/* the HBM is emptied into the host tier, as before it is taken away */
	ASSERT_EQ(0, setPool(device, PEERBUF_PLACEMENT_DEVICE, PEERBUF_POOL_ISOLATED));
	ASSERT_EQ(0, device.move(desc.handle, slicedMove(PEERBUF_PLACEMENT_HOST)));
	EXPECT_EQ(0, device.finishMove(desc.handle).result);
	EXPECT_EQ(0, setPool(device, PEERBUF_PLACEMENT_DEVICE, PEERBUF_POOL_OFFLINE))
		<< device.why();
	EXPECT_EQ(0, device.tryAlloc(64 << 10)) << "in the other one: " << device.why();
	peerbuf_mapping m;
	EXPECT_ERRNO(ENOMEM, device.map(token, 0, 4096, &m));
	EXPECT_CONTAINS(device.why(), "offline");
	ASSERT_EQ(0, setPool(device, PEERBUF_PLACEMENT_DEVICE, PEERBUF_POOL_ISOLATED));
	ASSERT_EQ(0, setPool(device, PEERBUF_PLACEMENT_DEVICE, PEERBUF_POOL_ONLINE));
	EXPECT_ERRNO(EAGAIN, device.map(token, 0, 4096, &m));
	device.await([&] { return device.stats().refaults == 1; });
	EXPECT_EQ(0, device.map(token, 0, 4096, &m)) << device.why();
}

TEST(Pool, GivenNoSuchPoolOrStateThenSaid)
{
	Device device("hbm=1M");
	EXPECT_ERRNO(EINVAL, setPool(device, PEERBUF_PLACEMENT_HOST, PEERBUF_POOL_ISOLATED));
	EXPECT_CONTAINS(device.why(), "placements=device");
	EXPECT_ERRNO(EINVAL, setPool(device, 3, PEERBUF_POOL_ISOLATED));
	EXPECT_ERRNO(EINVAL, setPool(device, PEERBUF_PLACEMENT_DEVICE, 0));
	EXPECT_ERRNO(EINVAL, setPool(device, PEERBUF_PLACEMENT_DEVICE, 4));
	EXPECT_EQ(0, setPool(device, PEERBUF_PLACEMENT_DEVICE, PEERBUF_POOL_ONLINE)) << "as it is";
	EXPECT_EQ(0, device.tryAlloc(4096));
	for (const char *step : {"device.pool", "device.set_limits"}) {
		ASSERT_EQ(0, device.ops->fault(device.handle, step, 0, 1, -EIO, 0));
		EXPECT_ERRNO(EIO, std::string(step) == "device.pool"
					  ? setPool(device, PEERBUF_PLACEMENT_DEVICE,
						    PEERBUF_POOL_ISOLATED)
					  : setLimits(device, "default", noLimits()));
		EXPECT_EQ(0, device.tryAlloc(4096)) << "nothing changed";
	}
}

/* ---- limits ---------------------------------------------------------------------------------- */

TEST(Tenant, GivenOneThatAllocatesTooMuchThenItIsRefusedAndItsNeighbourServed)
{
	RunningDevice running("hbm=1M,tenant_bytes=512K");
	Device greedy(at(running, "greedy"));
	Device modest(at(running, "modest"));
	const auto first = greedy.alloc(384 << 10);
	EXPECT_ERRNO(ENOMEM, greedy.tryAlloc(256 << 10));
	EXPECT_EQ(PEERBUF_ERR_QUOTA, greedy.errc());
	EXPECT_CONTAINS(greedy.why(), "tenant 'greedy' needs 262144, has allocated 393216, may "
				      "allocate 524288");
	Device other(at(running, "greedy"));
	EXPECT_ERRNO(ENOMEM, other.tryAlloc(256 << 10)) << "it is one tenant";
	EXPECT_EQ(0, modest.tryAlloc(512 << 10)) << modest.why();
	EXPECT_EQ(393216u, statusOf(modest, "greedy").bytes);
	EXPECT_EQ(2u, statusOf(modest, "greedy").clients);
	EXPECT_EQ(0, greedy.slots.free(greedy.handle, first.handle));
	EXPECT_EQ(0, other.tryAlloc(512 << 10)) << other.why();
}

TEST(Tenant, GivenOneThatPinsTooMuchThenItIsRefusedAndItsDeathFreesAll)
{
	RunningDevice running("hbm=1M,tenant_pins=512K");
	Device modest(at(running, "modest"));
	{
		Device greedy(at(running, "greedy"));
		EXPECT_EQ(0, pinned(greedy, 384 << 10).rc) << greedy.why();
		EXPECT_ERRNO(ENOMEM, pinned(greedy, 256 << 10).rc);
		EXPECT_EQ(PEERBUF_ERR_QUOTA, greedy.errc());
		EXPECT_CONTAINS(greedy.why(), "tenant 'greedy' needs 262144, has pinned 393216, "
					      "may pin 524288");
		EXPECT_CONTAINS(greedy.why(), "holders: tenant 'greedy' 393216 bytes by client ");
		EXPECT_EQ(0, pinned(modest, 256 << 10).rc) << "a bystander: " << modest.why();
		EXPECT_EQ(393216u, statusOf(modest, "greedy").pinned);
		EXPECT_EQ(262144u, statusOf(modest, "modest").pinned);
		EXPECT_ERRNO(ENOMEM, modest.tryAlloc(512 << 10));
	}
	/* its connection is all that it had: this is also what a kill does */
	EXPECT_EQ(0, modest.tryAlloc(768 << 10)) << modest.why();
	auto status = cleared<peerbuf_tenant_status>();
	EXPECT_ERRNO(ENOENT, modest.ops->tenant_status(modest.handle, "greedy", &status));
}

TEST(Tenant, GivenNoHbmThenTheLimitsAreAboutTheHostTier)
{
	Device device("hbm=0,host=1M,placements=host,tenant_min=256K");
	auto request = usualAttach(256 << 10);
	const auto pin = [&](uint64_t size) {
		const auto desc = device.alloc(size);
		uint64_t token = 0;
		request.length = size;
		EXPECT_EQ(0, device.attach(desc.handle, &token, &request));
		return device.slots.pin(device.handle, token);
	};
	EXPECT_EQ(0, pin(512 << 10)) << device.why();
	EXPECT_ERRNO(ENOMEM, pin(4096));
	EXPECT_CONTAINS(device.why(), "has pinned 524288, may pin 524288");
	EXPECT_EQ(524288u, statusOf(device, "default").pinned);
	EXPECT_EQ(528384u, statusOf(device, "default").resident);
}

TEST(Tenant, GivenLimitsSetBeforeItComesThenTheyHoldAndStay)
{
	RunningDevice running("hbm=1M,pool=isolated");
	Device policy(at(running, "policy"));
	auto limits = noLimits();
	limits.bytes = 256 << 10;
	limits.pinned = 64 << 10;
	ASSERT_EQ(0, setLimits(policy, "late", limits)) << policy.why();
	ASSERT_EQ(0, setPool(policy, PEERBUF_PLACEMENT_DEVICE, PEERBUF_POOL_ONLINE));
	for (int again = 0; again < 2; again++) {
		Device late(at(running, "late"));
		EXPECT_ERRNO(ENOMEM, late.tryAlloc(512 << 10));
		EXPECT_ERRNO(ENOMEM, pinned(late, 128 << 10).rc);
		EXPECT_EQ(0, pinned(late, 64 << 10).rc) << late.why();
	}
	EXPECT_EQ(0u, statusOf(policy, "late").clients);
	EXPECT_EQ(0u, statusOf(policy, "late").bytes);
	EXPECT_EQ(262144u, statusOf(policy, "late").limits.bytes);

	/* no limit is set that is broken already */
	Device late(at(running, "late"));
	const auto desc = late.alloc(128 << 10);
	limits.bytes = 64 << 10;
	EXPECT_ERRNO(EBUSY, setLimits(policy, "late", limits));
	EXPECT_CONTAINS(policy.why(), "allocated 131072 bytes, wanted are at most 65536");
	EXPECT_EQ(262144u, statusOf(policy, "late").limits.bytes);
	EXPECT_EQ(0, late.slots.free(late.handle, desc.handle));
	EXPECT_ERRNO(EINVAL, setLimits(policy, "", limits));
	EXPECT_ERRNO(EINVAL, setLimits(policy, std::string(64, 'x').c_str(), limits));
	limits.struct_size = 8;
	EXPECT_ERRNO(EINVAL, setLimits(policy, "late", limits));
}

TEST(Tenant, GivenMinimumsThatDoNotFitThenWhoComesLastIsNotAdmitted)
{
	RunningDevice running("hbm=1M,host=1M,placements=device+host,tenant_min=512K");
	Device a(at(running, "a"));
	Device policy(at(running, "a")); /* the same tenant counts once */
	{
		Device b(at(running, "b"));
		peerbuf::test::FakeHost host;
		EXPECT_ERRNO(ENOMEM, Device::tryOpen(host, at(running, "c")));
		EXPECT_EQ(PEERBUF_ERR_QUOTA, host.failure().errc);
		EXPECT_CONTAINS(host.failure().message, "tenant 'c' needs 524288 of the 1048576");
		EXPECT_CONTAINS(host.failure().message, "tenant 'a' 524288, tenant 'b' 524288");
		auto limits = noLimits();
		limits.min_resident = (512 << 10) + 4096;
		EXPECT_ERRNO(ENOMEM, setLimits(policy, "a", limits));
		EXPECT_CONTAINS(policy.why(), "promised to others: tenant 'b' 524288");
	}
	Device c(at(running, "c"));
	EXPECT_EQ(0, c.tryAlloc(4096)) << c.why();
}

/* What is pinned never makes room, so it must leave what others were promised. */
TEST(Tenant, GivenAPinThatWouldTakeAnothersMinimumThenRefused)
{
	RunningDevice running("hbm=1M,host=1M,placements=device+host,tenant_pins=1M");
	Device a(at(running, "a"));
	Device b(at(running, "b"));
	auto limits = noLimits();
	limits.min_resident = 512 << 10;
	ASSERT_EQ(0, setLimits(a, "b", limits)) << a.why();
	const Pinned first = pinned(a, 256 << 10);
	EXPECT_EQ(0, first.rc) << a.why();
	EXPECT_ERRNO(ENOMEM, pinned(a, 512 << 10).rc);
	EXPECT_CONTAINS(a.why(), "tenant 'b' 524288");
	EXPECT_EQ(0, pinned(a, 256 << 10).rc) << a.why();
}

/* ---- more memory than there is HBM ----------------------------------------------------------- */

namespace
{

/** One tenant that goes on whatever is done to its memory. */
class Worker
{
public:
	Worker(const RunningDevice &running, const std::string &tenant)
	    : device_(at(running, tenant))
	{
	}

	Device &device() { return device_; }
	size_t buffers() const { return buffers_.size(); }

	void add(uint64_t size)
	{
		Used used;
		used.desc = device_.alloc(size);
		auto request = hbmAttach(size); /* in use only while it is in HBM */
		ASSERT_EQ(0, device_.attach(used.desc.handle, &used.token, &request))
			<< device_.why();
		buffers_.push_back(used);
	}

	/**
	 * As an importer's engine would: read what was written last time, through bus addresses,
	 * and write something new.
	 * @return false: its memory is not there yet.
	 */
	bool touch(size_t index, uint8_t next)
	{
		Used &used = buffers_[index];
		peerbuf_mapping m;
		const int rc = device_.map(used.token, 0, used.desc.size, &m);
		if (rc == -EAGAIN)
			return false;
		EXPECT_EQ(0, rc) << device_.why();
		if (rc)
			return true;
		EXPECT_EQ(PEERBUF_PLACEMENT_DEVICE, m.placement);
		uint64_t at = 0;
		size_t wrong = 0;
		for (uint64_t s = 0; s < m.n_segments; s++) {
			auto *bytes = static_cast<uint8_t *>(m.segments[s].cpu_addr);
			for (uint64_t i = 0; i < m.segments[s].length; i += 64, at += 64) {
				wrong += bytes[i] != (used.salt ? byteAt(at, used.salt) : 0);
				bytes[i] = byteAt(at, next);
			}
		}
		EXPECT_EQ(0u, wrong) << "of buffer " << index << " were lost on the way";
		used.salt = next;
		device_.slots.unmap(device_.handle, used.token, &m);
		return true;
	}

private:
	struct Used {
		peerbuf_buffer_desc desc;
		uint64_t token = 0;
		uint8_t salt = 0; /* of what was written; 0: nothing */
	};

	static uint8_t byteAt(uint64_t at, uint8_t salt)
	{
		return static_cast<uint8_t>((at >> 6) * 7 + (at >> 14) + salt);
	}

	Device device_;
	std::vector<Used> buffers_;
};

/** A thousand touches in an order that a seed decides. */
void oversubscribe(uint64_t seed)
{
	constexpr uint64_t hbm = 2 << 20;
	RunningDevice running("hbm=2M,host=8M,placements=device+host,tenant_min=256K,seed=" +
			      std::to_string(seed));
	std::vector<std::unique_ptr<Worker>> workers;
	const char *names[] = {"a", "b", "c", "d"};
	uint64_t allocated = 0;
	for (const char *name : names)
		workers.push_back(std::make_unique<Worker>(running, name));
	/* of several sizes, so that one that comes sends out several, and the reverse */
	for (const uint64_t size : {512u << 10, 256u << 10, 768u << 10, 128u << 10, 384u << 10}) {
		for (auto &worker : workers) {
			worker->add(size);
			allocated += size;
		}
	}
	ASSERT_GE(allocated, 4 * hbm);

	std::mt19937_64 random(seed);
	for (int i = 0; i < 300; i++) {
		Worker &worker = *workers[random() % workers.size()];
		const size_t index = random() % worker.buffers();
		const auto next = static_cast<uint8_t>(1 + random() % 255);
		worker.device().await([&] {
			for (auto &other : workers)
				other->device().slots.progress(other->device().handle);
			return worker.touch(index, next);
		});
		if (::testing::Test::HasFailure())
			return;
	}
	for (auto &worker : workers)
		for (size_t i = 0; i < worker->buffers(); i++)
			worker->device().await([&] {
				for (auto &other : workers)
					other->device().slots.progress(other->device().handle);
				return worker->touch(i, 1);
			});
	const auto stats = workers[0]->device().stats();
	EXPECT_GT(stats.evictions, 20u);
	EXPECT_GT(stats.refaults, 20u);
	EXPECT_EQ(0u, stats.quarantined);
	for (size_t i = 0; i < std::size(names); i++) {
		const auto status = statusOf(workers[0]->device(), names[i]);
		EXPECT_EQ(2u << 20, status.bytes);
		EXPECT_LE(status.resident, hbm);
	}
	/* what is not there any more is not missed by those who stay */
	workers.pop_back();
	workers.pop_back();
	workers[0]->device().await([&] {
		workers[1]->device().slots.progress(workers[1]->device().handle);
		return workers[0]->touch(0, 9);
	});
	workers.clear();
	Device last(at(running, "last"));
	EXPECT_EQ(0, last.tryAlloc(hbm)) << last.why();
}

class Oversubscribed : public ::testing::TestWithParam<uint64_t>
{
};

} // namespace

TEST_P(Oversubscribed, GivenFourTimesTheHbmInUseThenEveryByteIsWhereItBelongs)
{
	oversubscribe(GetParam());
}

INSTANTIATE_TEST_SUITE_P(Seeds, Oversubscribed, ::testing::Values(1, 2, 3, 4));

TEST(Oversubscribed, GivenNoRoomToChangePlacesThenTheAllocationIsRefused)
{
	Device device("hbm=1M,host=1M,placements=device+host");
	const auto first = device.alloc(1 << 20);
	EXPECT_ERRNO(ENOMEM, device.tryAlloc(256 << 10)) << "a small one for a large one";
	EXPECT_CONTAINS(device.why(),
			"262144 bytes needed, 1048576 free there and in HBM, of which "
			"2093056 are kept so that buffers can change places");
	EXPECT_EQ(0, device.slots.free(device.handle, first.handle));
	/* of one size: as long as one of them has somewhere to go */
	const auto half = device.alloc(512 << 10);
	const auto other = device.alloc(512 << 10);
	const auto third = device.alloc(512 << 10);
	EXPECT_ERRNO(ENOMEM, device.tryAlloc(512 << 10));
	for (const auto &desc : {half, other, third})
		EXPECT_EQ(0, device.slots.free(device.handle, desc.handle));
}

TEST(Oversubscribed, GivenEverythingPinnedThenWhoWantsInIsToldWhoHoldsIt)
{
	Device device("hbm=1M,host=2M,placements=device+host,tenant_pins=1M");
	EXPECT_EQ(0, pinned(device, 512 << 10).rc);
	const Pinned second = pinned(device, 512 << 10);
	EXPECT_EQ(0, second.rc);
	const auto desc = device.alloc(512 << 10); /* to the host tier */
	auto request = hbmAttach(desc.size);
	uint64_t token = 0;
	ASSERT_EQ(0, device.attach(desc.handle, &token, &request)) << "it can wait";
	peerbuf_mapping m;
	EXPECT_ERRNO(ENOMEM, device.map(token, 0, 4096, &m));
	EXPECT_CONTAINS(device.why(), "524288 bytes needed, 0 of 1048576 of HBM free, 0 can be "
				      "evicted");
	EXPECT_CONTAINS(device.why(), "tenant 'default' 1048576 bytes by client");
	device.slots.unpin(device.handle, second.token);
	EXPECT_ERRNO(EAGAIN, device.map(token, 0, 4096, &m));
	device.await([&] { return device.stats().refaults == 1; });
	EXPECT_EQ(0, device.map(token, 0, 4096, &m)) << device.why();
	EXPECT_EQ(1u, device.stats().evictions);
}

TEST(Oversubscribed, GivenAPinOfWhatIsInTheHostTierThenItIsBroughtBackFirst)
{
	Device device("hbm=1M,host=1M,placements=device+host");
	const auto desc = device.alloc(256 << 10);
	auto request = hbmAttach(desc.size);
	uint64_t token = 0;
	ASSERT_EQ(0, device.attach(desc.handle, &token, &request));
	ASSERT_EQ(0, device.move(desc.handle, slicedMove(PEERBUF_PLACEMENT_HOST)));
	EXPECT_EQ(0, device.finishMove(desc.handle).result);
	EXPECT_ERRNO(EAGAIN, device.slots.pin(device.handle, token));
	device.await([&] { return device.slots.pin(device.handle, token) == 0; });
	EXPECT_EQ(PEERBUF_PLACEMENT_DEVICE, device.moveStatus(desc.handle).placement);
	device.slots.unpin(device.handle, token);
}

TEST(Oversubscribed, GivenATenantAtItsMinimumThenOthersDoNotSendItOut)
{
	RunningDevice running("hbm=1M,host=4M,placements=device+host");
	Device kept(at(running, "kept"));
	Device other(at(running, "other"));
	auto limits = noLimits();
	limits.min_resident = 512 << 10;
	ASSERT_EQ(0, setLimits(kept, "kept", limits)) << kept.why();
	const auto mine = kept.alloc(512 << 10);
	(void)mine;
	std::vector<uint64_t> tokens;
	for (int i = 0; i < 3; i++) {
		const auto desc = other.alloc(256 << 10);
		auto request = hbmAttach(desc.size);
		ASSERT_EQ(0, other.attach(desc.handle, &tokens.emplace_back(), &request))
			<< other.why();
	}
	for (int i = 0; i < 9; i++) {
		peerbuf_mapping m;
		other.await([&] {
			kept.slots.progress(kept.handle);
			return other.map(tokens[static_cast<size_t>(i % 3)], 0, 4096, &m) == 0;
		});
		EXPECT_EQ(524288u, statusOf(kept, "kept").resident);
	}
	EXPECT_GT(other.stats().evictions, 0u);
	/* even where nothing else could give way */
	const auto large = other.alloc(768 << 10);
	auto request = hbmAttach(large.size);
	uint64_t token = 0;
	ASSERT_EQ(0, other.attach(large.handle, &token, &request));
	peerbuf_mapping m;
	EXPECT_ERRNO(ENOMEM, other.map(token, 0, 4096, &m));
}

/* A large one in front of the queue is not passed by small ones, which would do so for ever. */
TEST(Oversubscribed, GivenALargeOneThatWaitsThenWhatGetsFreeIsKeptForIt)
{
	Device device("hbm=1M,host=8M,placements=device+host,granularity=256K");
	std::vector<peerbuf_buffer_desc> buffers;
	std::vector<uint64_t> tokens;
	for (const uint64_t size :
	     {256u << 10, 256u << 10, 256u << 10, 256u << 10, 1024u << 10, 256u << 10}) {
		buffers.push_back(device.alloc(size));
		auto request = hbmAttach(size);
		ASSERT_EQ(0,
			  device.attach(buffers.back().handle, &tokens.emplace_back(), &request));
	}
	const peerbuf_buffer_desc &large = buffers[4];
	const peerbuf_buffer_desc &small = buffers[5];
	std::vector<std::pair<uint64_t, uint64_t>> open;
	device.host.onInvalidate = [&](uint64_t buffer, const peerbuf_invalidate &inv) {
		open.emplace_back(buffer, inv.cookie);
		return -EINPROGRESS;
	};
	const auto release = [&] {
		device.slots.invalidate_done(device.handle, open.back().first, open.back().second,
					     0);
		open.pop_back();
	};
	peerbuf_mapping m;
	EXPECT_ERRNO(EAGAIN, device.map(tokens[4], 0, 4096, &m));
	EXPECT_ERRNO(EAGAIN, device.map(tokens[5], 0, 4096, &m));
	device.await([&] { return open.size() == 4; }); /* all are asked to leave */
	release();
	device.await([&] { return device.stats().evictions == 1; });
	for (int i = 0; i < 20; i++) /* turns of the device's loop */
		ASSERT_EQ(0u, device.moveStatus(small.handle).running) << "it passed";
	while (open.size() > 0)
		release();
	device.await([&] {
		while (open.size() > 0)
			release();
		return device.stats().refaults == 1;
	});
	EXPECT_EQ(PEERBUF_PLACEMENT_DEVICE, device.moveStatus(large.handle).placement);
	device.await([&] { /* and then it is the small one's turn */
			   while (open.size() > 0)
				   release();
			   return device.stats().refaults == 2;
	});
	EXPECT_EQ(PEERBUF_PLACEMENT_DEVICE, device.moveStatus(small.handle).placement);
	device.host.onInvalidate = nullptr;
}

} // namespace peerbuf::emulated::test
