// SPDX-License-Identifier: BSD-3-Clause
/*
 * The kernel's rules that no black box shows: order of calls, locks, repeated and early Invalidate.
 * One plugin on each side records what the core does; RULES.md has the table rule → test.
 */
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <fcntl.h>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include "contract/world.h"
#include "recorder.h"
#include "support/watchdog.h"

namespace peerbuf::contract
{

namespace
{

using test::LastError;
using test::PluginSpec;

using Call = recorder_call;
using Hook = std::function<int(const Call &)>;

/** Set while this thread is inside host->invalidate. */
thread_local bool inside_invalidate = false;

const char *slotName(uint32_t slot)
{
	static constexpr const char *names[] = {
		"",	     "attach",	   "detach",	      "pin", "unpin", "map",  "unmap",
		"export_fd", "release_fd", "invalidate_done", "get", "put",   "free", "reg",
		"dereg",     "invalidate", "resume"};
	return slot < std::size(names) ? names[slot] : "?";
}

/** Which slots the contract calls with the reservation held. */
bool mustHold(uint32_t slot)
{
	switch (slot) {
	case RECORDER_PIN:
	case RECORDER_UNPIN:
	case RECORDER_MAP:
	case RECORDER_UNMAP:
	case RECORDER_REG:
	case RECORDER_INVALIDATE:
	case RECORDER_RESUME:
		return true;
	default:
		return false;
	}
}

class Rules : public testing::Test
{
protected:
	static constexpr uint64_t size = 0x10000;

	void open(const std::string &exporter, const std::string &importer)
	{
		std::string why;
		exporter_ = world_.addExporter(*PluginSpec::parse(exporter, &why));
		importer_ = world_.addImporter(*PluginSpec::parse(importer, &why));
		ASSERT_NE(nullptr, exporter_);
		ASSERT_NE(nullptr, importer_);
		const void *ops = nullptr;
		ASSERT_PB_OK(peerbuf_exporter_open_ops(world_.ctx(), exporter_->id,
						       PEERBUF_RECORDER_OPS, &ops, &device_));
		exp_ = static_cast<const recorder_ops *>(ops);
		exp_->set_hook(device_, onCall, this);
		if (importer_->spec.name == "recorder") {
			ASSERT_PB_OK(peerbuf_importer_open_ops(world_.ctx(), importer_->id,
							       PEERBUF_RECORDER_OPS, &ops, &nic_));
			imp_ = static_cast<const recorder_ops *>(ops);
			imp_->set_hook(nic_, onCall, this);
		}
		buffer_ = world_.alloc(*exporter_, size);
		ASSERT_NE(0u, buffer_.id);
	}
	/** The pair that is Movable. */
	void openMovable()
	{
		open("recorder:stability=moves,pin=can", "recorder:invalidation=refault");
	}
	/** The pair that is Revocable, with a real pin. */
	void openRevocable()
	{
		open("recorder:stability=moves,pin=can,revoke=may",
		     "recorder:invalidation=revocable");
	}
	void openPinned()
	{
		open("recorder:stability=moves,pin=can", "recorder:invalidation=neither");
	}

	void TearDown() override
	{
		if (exp_) {
			world_.deregisterAll();
			EXPECT_PB_OK(peerbuf_progress(world_.ctx()));
			EXPECT_EQ(0u, exp_->violations(device_));
			EXPECT_EQ(0u, exp_->held(device_));
		}
		world_.close();
		expectLocks();
		expectBalance();
	}

	int registerAll(peerbuf_reg_t *ret_reg, const peerbuf_policy *policy = nullptr)
	{
		return world_.registerRange(buffer_, 0, size, {importer_->id}, usual_access, policy,
					    ret_reg);
	}

	int invalidate(uint32_t reason, uint64_t offset = 0, uint64_t length = size,
		       uint64_t cookie = 77)
	{
		peerbuf_invalidate inv = {};
		inv.struct_size = sizeof(inv);
		inv.reason = reason;
		inv.offset = offset;
		inv.length = length;
		inv.generation = 1;
		inv.cookie = cookie;
		inside_invalidate = true;
		const int rc = exp_->invalidate(device_, buffer_.handle, &inv);
		inside_invalidate = false;
		return rc;
	}
	int resume(int aborted = 0, uint64_t offset = 0, uint64_t length = size)
	{
		peerbuf_resume res = {};
		res.struct_size = sizeof(res);
		res.aborted = static_cast<uint32_t>(aborted);
		res.offset = offset;
		res.length = length;
		res.generation = 1;
		return exp_->resume(device_, buffer_.handle, &res);
	}
	/** As an exporter does it (rule 54): first the mark, then the notice. */
	int revoke()
	{
		exp_->set_revoked(device_, buffer_.handle, 1);
		return invalidate(PEERBUF_REASON_REVOKE);
	}
	int mapUp(uint64_t attachment, uint64_t offset = 0, uint64_t length = size)
	{
		peerbuf_mapping mapping = {};
		mapping.struct_size = sizeof(mapping);
		return imp_->map(nic_, attachment, offset, length, &mapping);
	}

	/** Do @p hook in every call of @p slot. */
	void on(uint32_t slot, const Hook &hook)
	{
		const std::lock_guard<std::mutex> lock(mutex_);
		hooks_[slot] = hook;
	}

	std::vector<Call> calls(uint32_t slot = 0) const
	{
		const std::lock_guard<std::mutex> lock(mutex_);
		std::vector<Call> found;
		std::copy_if(calls_.begin(), calls_.end(), std::back_inserter(found),
			     [&](const Call &call) { return slot == 0 || call.slot == slot; });
		return found;
	}
	size_t count(uint32_t slot) const { return calls(slot).size(); }

	/** The slots called since @p from, in words: "attach pin map reg". */
	std::string sequence(size_t from = 0) const
	{
		const std::lock_guard<std::mutex> lock(mutex_);
		std::string words;
		for (size_t i = from; i < calls_.size(); i++)
			words += (words.empty() ? "" : " ") + std::string(slotName(calls_[i].slot));
		return words;
	}
	size_t now() const
	{
		const std::lock_guard<std::mutex> lock(mutex_);
		return calls_.size();
	}

	World &world() { return world_; }
	uint64_t attachment() const { return calls(RECORDER_ATTACH).back().attachment; }

	const recorder_ops *exp_ = nullptr;
	const recorder_ops *imp_ = nullptr;
	void *device_ = nullptr;
	void *nic_ = nullptr;
	Exporter *exporter_ = nullptr;
	Importer *importer_ = nullptr;
	Buffer buffer_;

private:
	static int onCall(void *data, const recorder_call *call)
	{
		auto *self = static_cast<Rules *>(data);
		Hook hook;
		{
			const std::lock_guard<std::mutex> lock(self->mutex_);
			self->calls_.push_back(*call);
			const auto it = self->hooks_.find(call->slot);
			if (it != self->hooks_.end())
				hook = it->second;
			if (inside_invalidate &&
			    (call->slot == RECORDER_ATTACH || call->slot == RECORDER_DETACH ||
			     call->slot == RECORDER_DEREG || call->slot == RECORDER_FREE))
				self->nested_.push_back(slotName(call->slot));
		}
		return hook ? hook(*call) : 0;
	}

	/** Rules 13, 16, 18, 25, 46, 47: each call of each test with the right lock. */
	void expectLocks() const
	{
		for (const Call &call : calls()) {
			if (call.held < 0)
				continue;
			EXPECT_EQ(mustHold(call.slot) ? 1 : 0, call.held)
				<< slotName(call.slot) << " in: " << sequence();
		}
		EXPECT_TRUE(nested_.empty()) << nested_.front() << " inside an invalidate";
	}

	/** Whatever was done was undone, as often. */
	void expectBalance() const
	{
		const std::pair<uint32_t, uint32_t> pairs[] = {
			{RECORDER_MAP, RECORDER_UNMAP},
			{RECORDER_PIN, RECORDER_UNPIN},
			{RECORDER_ATTACH, RECORDER_DETACH},
			{RECORDER_EXPORT_FD, RECORDER_RELEASE_FD},
			{RECORDER_GET, RECORDER_PUT},
			{RECORDER_REG, RECORDER_DEREG}};
		for (const auto &[make, unmake] : pairs) {
			const auto failed = failures_.find(make);
			const size_t made =
				count(make) - (failed == failures_.end() ? 0 : failed->second);
			EXPECT_EQ(made, count(unmake)) << slotName(make) << ": " << sequence();
		}
	}

protected:
	/** Calls of a slot that the test made fail, so that nothing undoes them. */
	std::map<uint32_t, size_t> failures_;

private:
	test::Watchdog watchdog_{testing::UnitTest::GetInstance()->current_test_info()->name()};
	mutable std::mutex mutex_;
	std::vector<Call> calls_;
	std::map<uint32_t, Hook> hooks_;
	std::vector<std::string> nested_;
	World world_;
};

/* ---- the fd and the object ---------------------------------------------------------------- */

TEST_F(Rules, Rule8_GivenADescriptorThatIsNotOpenOrNoDmaBufThenBadfOrInvalid)
{
	ASSERT_NO_FATAL_FAILURE(openPinned());
	peerbuf_source source = {};
	source.struct_size = sizeof(source);
	source.length = 0x1000;
	source.fd = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0);
	ASSERT_LE(0, source.fd);
	close(source.fd);
	peerbuf_reg_t reg = 0;
	EXPECT_EQ(-EBADF,
		  world().registerSource(source, {importer_->id}, usual_access, nullptr, &reg));
	EXPECT_TRUE(test::mentions(LastError::take().text(), static_cast<uint64_t>(source.fd)));
	source.fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
	ASSERT_LE(0, source.fd);
	EXPECT_EQ(-EINVAL,
		  world().registerSource(source, {importer_->id}, usual_access, nullptr, &reg));
	EXPECT_TRUE(test::mentions(LastError::take().text(), static_cast<uint64_t>(source.fd)));
	close(source.fd);
	EXPECT_EQ("", sequence());
}

TEST_F(Rules, Rule9_GivenARegistrationByDescriptorWhenItIsClosedThenTheRegionLivesOn)
{
	ASSERT_NO_FATAL_FAILURE(
		open("recorder:stability=static,handles=fd", "recorder:invalidation=neither"));
	int fd = -1;
	on(RECORDER_REG, [&](const Call &call) {
		const auto *request = static_cast<const peerbuf_reg_request *>(call.request);
		EXPECT_NE(nullptr, request->fd_export);
		if (fd < 0 && request->fd_export)
			fd = fcntl(request->fd_export->fd, F_DUPFD_CLOEXEC, 0);
		return 0;
	});
	peerbuf_reg_t first = 0;
	ASSERT_PB_OK(registerAll(&first));
	ASSERT_LE(0, fd);
	EXPECT_PB_OK(world().deregister(first));

	const size_t from = now();
	peerbuf_source source = {};
	source.struct_size = sizeof(source);
	source.fd = fd;
	source.length = size;
	peerbuf_reg_t reg = 0;
	ASSERT_PB_OK(world().registerSource(source, {importer_->id}, usual_access, nullptr, &reg));
	close(fd);
	EXPECT_EQ(1u, count(RECORDER_DETACH)) << "that of the first";
	EXPECT_EQ(0u, world().regInfo(reg).revoked);
	EXPECT_EQ(0u, world().regInfo(reg).buffer) << "it was named by its descriptor";
	EXPECT_PB_OK(world().deregister(reg));
	// the surplus reference to a buffer that is known already may go at once, but only once
	EXPECT_EQ(1u, count(RECORDER_GET)) << sequence(from);
	EXPECT_EQ(1u, count(RECORDER_PUT)) << sequence(from);
	EXPECT_EQ(2u, count(RECORDER_DETACH)) << sequence(from);
}

/* ---- dma-bufs ------------------------------------------------------------------------------ */

TEST_F(Rules, GivenADmaBufThenItIsExportedOnceWhoeverUsesItAndReleasedAfterTheLast)
{
	ASSERT_NO_FATAL_FAILURE(
		open("recorder:stability=static,handles=fd", "recorder:invalidation=neither"));
	std::set<int> fds;
	std::vector<uint64_t> offsets;
	on(RECORDER_REG, [&](const Call &call) {
		const auto *request = static_cast<const peerbuf_reg_request *>(call.request);
		EXPECT_NE(nullptr, request->fd_export);
		if (request->fd_export) {
			fds.insert(request->fd_export->fd);
			offsets.push_back(request->fd_export->offset);
		}
		return 0;
	});
	peerbuf_reg_t first = 0;
	peerbuf_reg_t second = 0;
	ASSERT_PB_OK(world().registerRange(buffer_, 0x2000, 0x1000, {importer_->id}, usual_access,
					   nullptr, &first));
	ASSERT_PB_OK(world().registerRange(buffer_, 0x180, size - 0x180, {importer_->id},
					   usual_access, nullptr, &second));
	EXPECT_EQ(1u, count(RECORDER_EXPORT_FD)) << sequence();
	EXPECT_EQ(1u, fds.size());
	EXPECT_EQ((std::vector<uint64_t>{0x2000, 0x180}), offsets);
	EXPECT_PB_OK(world().deregister(first));
	EXPECT_EQ(0u, count(RECORDER_RELEASE_FD)) << "the second uses it: " << sequence();
	EXPECT_EQ(0u, count(RECORDER_DETACH)) << "it is released with this attachment";
	EXPECT_PB_OK(world().deregister(second));
	EXPECT_EQ(1u, count(RECORDER_RELEASE_FD)) << sequence();
	EXPECT_EQ(2u, count(RECORDER_DETACH)) << sequence();
}

TEST_F(Rules, GivenThreadsThatShareADmaBufThenEachExportIsReleasedOnce)
{
	ASSERT_NO_FATAL_FAILURE(
		open("recorder:stability=static,handles=fd", "recorder:invalidation=neither"));
	constexpr int rounds = 100;
	std::atomic<int> failed{0};
	const auto work = [&](uint64_t offset) {
		for (int i = 0; i < rounds; i++) {
			peerbuf_source source = {};
			source.struct_size = sizeof(source);
			source.fd = -1;
			source.buffer = buffer_.id;
			source.offset = offset;
			source.length = 0x1000;
			peerbuf_reg_t reg = 0;
			const peerbuf_importer_t importer = importer_->id;
			if (peerbuf_register(world().ctx(), &source, &importer, 1, usual_access,
					     nullptr, &reg) ||
			    peerbuf_deregister(world().ctx(), reg))
				failed++;
		}
	};
	std::thread other(work, 0x1000);
	work(0);
	other.join();
	EXPECT_EQ(0, failed);
	EXPECT_EQ(2u * rounds, count(RECORDER_ATTACH));
	EXPECT_EQ(2u * rounds, count(RECORDER_DETACH));
	EXPECT_LE(count(RECORDER_EXPORT_FD), 2u * rounds);
	EXPECT_EQ(count(RECORDER_EXPORT_FD), count(RECORDER_RELEASE_FD));
}

/* ---- attach and detach -------------------------------------------------------------------- */

TEST_F(Rules, Rule12_GivenAnExporterThatLowersPeerToPeerThenItIsLowered)
{
	ASSERT_NO_FATAL_FAILURE(
		open("recorder:stability=static,placements=both", "recorder:invalidation=neither"));
	uint32_t allowed = 0;
	on(RECORDER_ATTACH, [&](const Call &call) {
		allowed =
			static_cast<const peerbuf_attach_request *>(call.request)->allow_peer2peer;
		static_cast<peerbuf_attach_reply *>(call.reply)->peer2peer = 0;
		static_cast<peerbuf_attach_reply *>(call.reply)->placement = PEERBUF_PLACEMENT_HOST;
		return 0;
	});
	on(RECORDER_MAP, [&](const Call &call) {
		static_cast<peerbuf_mapping *>(call.reply)->peer2peer = 0;
		static_cast<peerbuf_mapping *>(call.reply)->placement = PEERBUF_PLACEMENT_HOST;
		return 0;
	});
	peerbuf_policy policy = {};
	policy.struct_size = sizeof(policy);
	policy.host_placement_ok = 1;
	peerbuf_reg_t reg = 0;
	ASSERT_PB_OK(registerAll(&reg, &policy));
	EXPECT_EQ(1u, allowed);
	EXPECT_EQ(0u, world().region(reg).peer2peer);
	EXPECT_EQ(uint32_t{PEERBUF_PLACEMENT_HOST}, world().region(reg).placement);
	// and without leave to be in host memory that is no region at all
	peerbuf_reg_t strict = 0;
	EXPECT_PB_ERROR(registerAll(&strict), -EOPNOTSUPP, PEERBUF_ERR_NOT_P2P_PLACEMENT);
}

TEST_F(Rules, Rule12_GivenAnExporterThatRaisesPeerToPeerThenItIsNotBelieved)
{
	ASSERT_NO_FATAL_FAILURE(open("recorder:stability=static,placements=both",
				     "recorder:invalidation=neither,peer2peer=no"));
	uint32_t allowed = 1;
	on(RECORDER_ATTACH, [&](const Call &call) {
		allowed =
			static_cast<const peerbuf_attach_request *>(call.request)->allow_peer2peer;
		static_cast<peerbuf_attach_reply *>(call.reply)->peer2peer = 1;
		return 0;
	});
	peerbuf_policy policy = {};
	policy.struct_size = sizeof(policy);
	policy.host_placement_ok = 1;
	peerbuf_reg_t reg = 0;
	EXPECT_PB_ERROR(registerAll(&reg, &policy), -EINVAL, PEERBUF_ERR_BAD_PLUGIN);
	EXPECT_EQ(0u, allowed);
	EXPECT_EQ(0u, count(RECORDER_REG)) << sequence();
}

TEST_F(Rules, Rule13_GivenAnAttachThatFailsThenDetachIsNotCalled)
{
	ASSERT_NO_FATAL_FAILURE(openPinned());
	on(RECORDER_ATTACH, [](const Call &) { return -EBUSY; });
	failures_[RECORDER_ATTACH] = 1;
	peerbuf_reg_t reg = 0;
	EXPECT_EQ(-EBUSY, registerAll(&reg));
	EXPECT_EQ("attach", sequence());
}

TEST_F(Rules, Rule14_GivenAnExporterThatRefusesTheImporterThenItsErrorIsTheCallers)
{
	ASSERT_NO_FATAL_FAILURE(openPinned());
	on(RECORDER_ATTACH, [](const Call &) { return -EOPNOTSUPP; });
	peerbuf_reg_t reg = 0;
	EXPECT_EQ(-EOPNOTSUPP, registerAll(&reg));
	failures_[RECORDER_ATTACH] = count(RECORDER_ATTACH);
	EXPECT_EQ(0u, count(RECORDER_DETACH));
}

TEST_F(Rules, Rule15_GivenAnInvalidateFromInsideAttachThenHarmless)
{
	ASSERT_NO_FATAL_FAILURE(openMovable());
	int during = 1;
	on(RECORDER_ATTACH, [&](const Call &) {
		during = invalidate(PEERBUF_REASON_MOVE);
		EXPECT_TRUE(resume() == 0 || during == -ENOENT);
		return 0;
	});
	peerbuf_reg_t reg = 0;
	ASSERT_PB_OK(registerAll(&reg));
	EXPECT_TRUE(during == 0 || during == -ENOENT) << test::errnoName(during);
	EXPECT_EQ(0, mapUp(attachment()));
	EXPECT_PB_OK(world().deregister(reg));
}

TEST_F(Rules, Rule15_GivenARevokeFromInsideAttachThenTheRegistrationFailsOrIsRevoked)
{
	ASSERT_NO_FATAL_FAILURE(openRevocable());
	on(RECORDER_ATTACH, [&](const Call &) {
		const int rc = revoke();
		EXPECT_TRUE(rc == 0 || rc == -ENOENT) << test::errnoName(rc);
		return 0;
	});
	peerbuf_reg_t reg = 0;
	EXPECT_PB_ERROR(registerAll(&reg), -ENODEV, PEERBUF_ERR_REVOKED);
	EXPECT_EQ(0u, count(RECORDER_REG)) << sequence();
}

TEST_F(Rules, Rule15_GivenAnInvalidateWhileRegRunsThenItReachesTheImporterWithItsAttachment)
{
	ASSERT_NO_FATAL_FAILURE(openMovable());
	std::thread mover;
	int rc = 1;
	on(RECORDER_REG, [&](const Call &) {
		// it waits for the reservation, which this thread holds
		mover = std::thread([&] { rc = invalidate(PEERBUF_REASON_MOVE); });
		return 0;
	});
	peerbuf_reg_t reg = 0;
	const int registered = registerAll(&reg);
	if (mover.joinable())
		mover.join();
	ASSERT_TRUE(test::succeeded("peerbuf_register", registered));
	EXPECT_EQ(0, rc);
	ASSERT_EQ(1u, count(RECORDER_INVALIDATE));
	EXPECT_EQ(attachment(), calls(RECORDER_INVALIDATE)[0].attachment);
	EXPECT_EQ(0, resume());
	EXPECT_EQ(0, mapUp(attachment()));
}

TEST_F(Rules, Rule15_GivenARegThatMapsThenTheMappingIsThereBeforeItReturns)
{
	ASSERT_NO_FATAL_FAILURE(openMovable());
	on(RECORDER_REG, [&](const Call &call) {
		peerbuf_mapping mapping = {};
		mapping.struct_size = sizeof(mapping);
		EXPECT_EQ(0, imp_->map(nic_, call.attachment, 0, size, &mapping));
		EXPECT_EQ(size, mapping.length);
		return 0;
	});
	peerbuf_reg_t reg = 0;
	ASSERT_PB_OK(registerAll(&reg));
	EXPECT_PB_OK(world().deregister(reg));
	EXPECT_LE(1u, count(RECORDER_MAP));
}

TEST_F(Rules, Rule16_GivenADeregisterThenEverythingIsGivenBackBeforeDetach)
{
	ASSERT_NO_FATAL_FAILURE(openPinned());
	peerbuf_reg_t reg = 0;
	ASSERT_PB_OK(registerAll(&reg));
	EXPECT_EQ("attach pin map reg", sequence());
	const size_t from = now();
	EXPECT_PB_OK(world().deregister(reg));
	EXPECT_EQ("dereg unmap unpin detach", sequence(from));
}

TEST_F(Rules, Rule17_GivenTwoBuffersThenEachCallNamesItsOwnAttachment)
{
	ASSERT_NO_FATAL_FAILURE(openPinned());
	const Buffer other = world().alloc(*exporter_, size);
	peerbuf_reg_t first = 0;
	peerbuf_reg_t second = 0;
	ASSERT_PB_OK(registerAll(&first));
	ASSERT_PB_OK(world().registerRange(other, 0, size, {importer_->id}, usual_access, nullptr,
					   &second));
	EXPECT_PB_OK(world().deregister(first));
	EXPECT_PB_OK(world().deregister(second));
	std::map<uint64_t, uint64_t> buffer_of;
	for (const Call &call : calls(RECORDER_ATTACH))
		buffer_of[call.token] = call.buffer;
	EXPECT_EQ(2u, buffer_of.size());
	const std::vector<Call> detached = calls(RECORDER_DETACH);
	ASSERT_EQ(2u, detached.size());
	EXPECT_EQ(buffer_.handle, buffer_of[detached[0].token]);
	EXPECT_EQ(other.handle, buffer_of[detached[1].token]);
	// tokens of others are found by the recorder and counted, see TearDown
}

/* ---- pin ---------------------------------------------------------------------------------- */

TEST_F(Rules, Rule18_GivenFlowsThenPinIsCalledForThoseThatPinAndUnderTheReservation)
{
	ASSERT_NO_FATAL_FAILURE(openRevocable());
	peerbuf_reg_t reg = 0;
	ASSERT_PB_OK(registerAll(&reg));
	EXPECT_EQ(PEERBUF_FLOW_REVOCABLE, world().regInfo(reg).flow);
	ASSERT_EQ(1u, count(RECORDER_PIN));
	EXPECT_EQ(1, calls(RECORDER_PIN)[0].held);
}

TEST_F(Rules, Rule18_GivenMovableThenPinIsNeverCalled)
{
	ASSERT_NO_FATAL_FAILURE(openMovable());
	peerbuf_reg_t reg = 0;
	ASSERT_PB_OK(registerAll(&reg));
	EXPECT_EQ(0, mapUp(attachment()));
	EXPECT_PB_OK(world().deregister(reg));
	EXPECT_EQ(0u, count(RECORDER_PIN)) << sequence();
}

TEST_F(Rules, Rule19_GivenAnExporterWithoutPinThenSuccessAndStillRevocable)
{
	ASSERT_NO_FATAL_FAILURE(open("recorder_nopin:stability=static,pin=not_needed,revoke=may",
				     "recorder:invalidation=revocable"));
	peerbuf_reg_t reg = 0;
	ASSERT_PB_OK(registerAll(&reg));
	EXPECT_EQ(PEERBUF_FLOW_REVOCABLE, world().regInfo(reg).flow);
	EXPECT_EQ(0u, world().regInfo(reg).pinned_bytes);
	EXPECT_EQ(0, revoke());
	EXPECT_EQ(1u, count(RECORDER_INVALIDATE));
	EXPECT_EQ(count(RECORDER_MAP), count(RECORDER_UNMAP));
	EXPECT_EQ(1u, world().regInfo(reg).revoked);
}

TEST_F(Rules, Rule21_GivenNestedPinsThenEachIsGivenBackOnce)
{
	ASSERT_NO_FATAL_FAILURE(openPinned());
	peerbuf_reg_t regs[3] = {};
	for (peerbuf_reg_t &reg : regs)
		ASSERT_PB_OK(registerAll(&reg));
	EXPECT_EQ(3u, count(RECORDER_PIN));
	for (size_t i = 0; i < std::size(regs); i++) {
		EXPECT_EQ(i, count(RECORDER_UNPIN));
		EXPECT_PB_OK(world().deregister(regs[i]));
	}
	EXPECT_EQ(3u, count(RECORDER_UNPIN));
}

TEST_F(Rules, Rule21_GivenAPinnedBufferWhenRevokedThenThePinIsGivenBackWithIt)
{
	ASSERT_NO_FATAL_FAILURE(openRevocable());
	peerbuf_reg_t reg = 0;
	ASSERT_PB_OK(registerAll(&reg));
	EXPECT_EQ(0, revoke());
	EXPECT_EQ(1u, count(RECORDER_UNPIN));
	EXPECT_PB_OK(world().deregister(reg));
	EXPECT_EQ(1u, count(RECORDER_UNPIN)) << "unpinned twice: " << sequence();
}

/* ---- map and unmap ------------------------------------------------------------------------ */

TEST_F(Rules, Rule25_GivenARefaultThenMapIsCalledUnderTheReservation)
{
	ASSERT_NO_FATAL_FAILURE(openMovable());
	peerbuf_reg_t reg = 0;
	ASSERT_PB_OK(registerAll(&reg));
	const size_t before = count(RECORDER_MAP);
	EXPECT_EQ(0, mapUp(attachment(), 0x1000, 0x2000));
	const std::vector<Call> maps = calls(RECORDER_MAP);
	ASSERT_EQ(before + 1, maps.size());
	EXPECT_EQ(1, maps.back().held);
}

TEST_F(Rules, Rule28_GivenSeveralMappingsThenEachIsFreshAndGivenBackAsItWas)
{
	ASSERT_NO_FATAL_FAILURE(openMovable());
	peerbuf_reg_t reg = 0;
	ASSERT_PB_OK(registerAll(&reg));
	for (int i = 0; i < 3; i++) {
		EXPECT_EQ(0, mapUp(attachment(), 0x1000, 0x1000));
		EXPECT_EQ(0, invalidate(PEERBUF_REASON_MOVE));
		EXPECT_EQ(0, resume());
	}
	EXPECT_PB_OK(world().deregister(reg));
	std::map<uint64_t, int> live;
	for (const Call &call : calls()) {
		if (call.slot == RECORDER_MAP) {
			EXPECT_EQ(1, ++live[call.mapping]);
		}
		if (call.slot == RECORDER_UNMAP) {
			EXPECT_EQ(0, --live[call.mapping]);
		}
	}
	EXPECT_LE(3u, live.size());
}

TEST_F(Rules, Rule31_GivenAMapThatFailsThenThePinIsGivenBackOnceAndNothingIsUnmapped)
{
	ASSERT_NO_FATAL_FAILURE(openPinned());
	on(RECORDER_MAP, [](const Call &) { return -EIO; });
	peerbuf_reg_t reg = 0;
	EXPECT_EQ(-EIO, registerAll(&reg));
	failures_[RECORDER_MAP] = 1;
	EXPECT_EQ("attach pin map unpin detach", sequence());
}

TEST_F(Rules, Rule31_GivenARegThatFailsThenUnmapUnpinDetachInThisOrder)
{
	ASSERT_NO_FATAL_FAILURE(openPinned());
	on(RECORDER_REG, [](const Call &) { return -EIO; });
	peerbuf_reg_t reg = 0;
	EXPECT_EQ(-EIO, registerAll(&reg));
	failures_[RECORDER_REG] = 1;
	EXPECT_EQ("attach pin map reg unmap unpin detach", sequence());
}

TEST_F(Rules, Rule31_GivenAnExportWhenRegFailsThenItIsReleasedOnce)
{
	ASSERT_NO_FATAL_FAILURE(
		open("recorder:stability=static,handles=fd", "recorder:invalidation=neither"));
	on(RECORDER_REG, [](const Call &) { return -EIO; });
	peerbuf_reg_t reg = 0;
	EXPECT_EQ(-EIO, registerAll(&reg));
	failures_[RECORDER_REG] = 1;
	EXPECT_EQ(1u, count(RECORDER_RELEASE_FD));
	EXPECT_EQ(1u, count(RECORDER_DETACH));
}

TEST_F(Rules, Rule32_GivenABufferThatIsRevokedBetweenAttachAndMapThenNodevAndAllIsUndone)
{
	ASSERT_NO_FATAL_FAILURE(openRevocable());
	on(RECORDER_ATTACH, [&](const Call &) {
		exp_->set_revoked(device_, buffer_.handle, 1);
		return 0;
	});
	peerbuf_reg_t reg = 0;
	EXPECT_PB_ERROR(registerAll(&reg), -ENODEV, PEERBUF_ERR_REVOKED);
	EXPECT_EQ(0u, count(RECORDER_REG)) << sequence();
	EXPECT_EQ(1u, count(RECORDER_DETACH));
}

/* ---- invalidate --------------------------------------------------------------------------- */

TEST_F(Rules, Rule46_GivenNothingAttachedThenInvalidateIsNothing)
{
	ASSERT_NO_FATAL_FAILURE(openMovable());
	const int rc = invalidate(PEERBUF_REASON_MOVE);
	EXPECT_TRUE(rc == 0 || rc == -ENOENT) << test::errnoName(rc);
	EXPECT_EQ(0u, count(RECORDER_INVALIDATE));
}

TEST_F(Rules, Rule46_GivenABadRangeThenInvalidAndNobodyIsTold)
{
	ASSERT_NO_FATAL_FAILURE(openMovable());
	world().log().allow("invalidate of reason");
	peerbuf_reg_t reg = 0;
	ASSERT_PB_OK(registerAll(&reg));
	EXPECT_EQ(-EINVAL, invalidate(PEERBUF_REASON_MOVE, 0, 0));
	EXPECT_EQ(-EINVAL, invalidate(PEERBUF_REASON_MOVE, UINT64_MAX, 2));
	EXPECT_EQ(0u, count(RECORDER_INVALIDATE));
}

TEST_F(Rules, Rule46_GivenAnImporterWithoutCallbackThenItIsSkippedAndItsMappingNotTakenAway)
{
	ASSERT_NO_FATAL_FAILURE(openPinned());
	world().log().allow("holds it Pinned");
	peerbuf_reg_t reg = 0;
	ASSERT_PB_OK(registerAll(&reg));
	const int rc = invalidate(PEERBUF_REASON_MOVE);
	EXPECT_EQ(0u, count(RECORDER_INVALIDATE));
	EXPECT_EQ(0u, count(RECORDER_UNMAP));
	EXPECT_NE(0, rc) << "0 would mean that the old place may be reused";
	EXPECT_NE(-ENOENT, rc);
}

TEST_F(Rules, Rule47_GivenAnImporterThatStopsAtOnceThenItsMappingsAreGoneWhenInvalidateReturns)
{
	ASSERT_NO_FATAL_FAILURE(openMovable());
	peerbuf_reg_t reg = 0;
	ASSERT_PB_OK(registerAll(&reg));
	ASSERT_EQ(0, mapUp(attachment()));
	EXPECT_EQ(0, invalidate(PEERBUF_REASON_MOVE));
	EXPECT_EQ(count(RECORDER_MAP), count(RECORDER_UNMAP));
	EXPECT_EQ(0u, count(RECORDER_INVALIDATE_DONE)) << "0 is the whole answer";
	EXPECT_EQ(0, resume());
}

TEST_F(Rules, Rule47_GivenAnImporterThatNeedsTimeThenDoneComesOnceAfterItsTicket)
{
	ASSERT_NO_FATAL_FAILURE(openMovable());
	peerbuf_reg_t reg = 0;
	ASSERT_PB_OK(registerAll(&reg));
	ASSERT_EQ(0, mapUp(attachment()));
	on(RECORDER_INVALIDATE, [](const Call &) { return -EINPROGRESS; });
	EXPECT_EQ(-EINPROGRESS, invalidate(PEERBUF_REASON_MOVE, 0, size, 4711));
	const uint64_t ticket = calls(RECORDER_INVALIDATE).at(0).ticket;
	EXPECT_PB_OK(peerbuf_progress(world().ctx()));
	EXPECT_EQ(0u, count(RECORDER_UNMAP)) << "the importer still uses it";
	EXPECT_EQ(0u, count(RECORDER_INVALIDATE_DONE));
	imp_->ticket_done(nic_, ticket);
	EXPECT_TRUE(world().progressUntil([&] { return count(RECORDER_INVALIDATE_DONE) > 0; }));
	EXPECT_EQ(count(RECORDER_MAP), count(RECORDER_UNMAP));
	EXPECT_PB_OK(peerbuf_progress(world().ctx()));
	const std::vector<Call> done = calls(RECORDER_INVALIDATE_DONE);
	ASSERT_EQ(1u, done.size());
	EXPECT_EQ(4711u, done[0].cookie);
	EXPECT_EQ(0, done[0].status);
	EXPECT_EQ(0, resume());
}

TEST_F(Rules, Rule47_GivenATicketBeforeInvalidateReturnsThenDoneComesOnce)
{
	ASSERT_NO_FATAL_FAILURE(openMovable());
	peerbuf_reg_t reg = 0;
	ASSERT_PB_OK(registerAll(&reg));
	ASSERT_EQ(0, mapUp(attachment()));
	on(RECORDER_INVALIDATE, [&](const Call &call) {
		imp_->ticket_done(nic_, call.ticket);
		return -EINPROGRESS;
	});
	const int rc = invalidate(PEERBUF_REASON_MOVE);
	EXPECT_TRUE(rc == 0 || rc == -EINPROGRESS) << test::errnoName(rc);
	for (int i = 0; i < 3; i++)
		EXPECT_PB_OK(peerbuf_progress(world().ctx()));
	EXPECT_EQ(rc == 0 ? 0u : 1u, count(RECORDER_INVALIDATE_DONE));
	EXPECT_EQ(count(RECORDER_MAP), count(RECORDER_UNMAP));
	EXPECT_EQ(0, resume());
}

TEST_F(Rules, Rule47_GivenATicketTwiceThenTheSecondIsDroppedAndLogged)
{
	ASSERT_NO_FATAL_FAILURE(openMovable());
	world().log().allow("ticket");
	peerbuf_reg_t reg = 0;
	ASSERT_PB_OK(registerAll(&reg));
	ASSERT_EQ(0, mapUp(attachment()));
	on(RECORDER_INVALIDATE, [](const Call &) { return -EINPROGRESS; });
	EXPECT_EQ(-EINPROGRESS, invalidate(PEERBUF_REASON_MOVE));
	const uint64_t ticket = calls(RECORDER_INVALIDATE).at(0).ticket;
	imp_->ticket_done(nic_, ticket);
	imp_->ticket_done(nic_, ticket);
	EXPECT_TRUE(world().progressUntil([&] { return count(RECORDER_INVALIDATE_DONE) > 0; }));
	EXPECT_PB_OK(peerbuf_progress(world().ctx()));
	EXPECT_EQ(1u, count(RECORDER_INVALIDATE_DONE));
	EXPECT_TRUE(world().log().has("ticket"));
	EXPECT_EQ(0, resume());
}

TEST_F(Rules, Rule47_GivenALateTicketThenItIsDropped)
{
	ASSERT_NO_FATAL_FAILURE(openMovable());
	peerbuf_reg_t reg = 0;
	ASSERT_PB_OK(registerAll(&reg));
	ASSERT_EQ(0, mapUp(attachment()));
	on(RECORDER_INVALIDATE, [](const Call &) { return -EINPROGRESS; });
	EXPECT_EQ(-EINPROGRESS, invalidate(PEERBUF_REASON_MOVE));
	const uint64_t ticket = calls(RECORDER_INVALIDATE).at(0).ticket;
	// the end of a region is the end of its use: the exporter need not wait for the ticket
	EXPECT_PB_OK(world().deregister(reg));
	EXPECT_TRUE(world().progressUntil([&] { return count(RECORDER_INVALIDATE_DONE) > 0; }));
	imp_->ticket_done(nic_, ticket);
	EXPECT_PB_OK(peerbuf_progress(world().ctx()));
	EXPECT_EQ(1u, count(RECORDER_INVALIDATE_DONE));
}

TEST_F(Rules, Rule47_GivenAnImporterThatCannotStopThenItIsRevokedAndTheExporterIsTold)
{
	ASSERT_NO_FATAL_FAILURE(openMovable());
	world().log().allow("invalidate");
	peerbuf_reg_t reg = 0;
	ASSERT_PB_OK(registerAll(&reg));
	ASSERT_EQ(0, mapUp(attachment()));
	on(RECORDER_INVALIDATE, [](const Call &) { return -EIO; });
	EXPECT_EQ(-EINPROGRESS, invalidate(PEERBUF_REASON_MOVE, 0, size, 99));
	EXPECT_TRUE(world().progressUntil([&] { return count(RECORDER_INVALIDATE_DONE) > 0; }));
	const std::vector<Call> done = calls(RECORDER_INVALIDATE_DONE);
	ASSERT_EQ(1u, done.size());
	EXPECT_EQ(99u, done[0].cookie);
	EXPECT_EQ(-EIO, done[0].status) << "its memory must go to quarantine";
	EXPECT_EQ(1u, world().regInfo(reg).revoked);
	EXPECT_EQ(-ENODEV, mapUp(attachment()));
}

TEST_F(Rules, Rule48_GivenInvalidatesThatAreRepeatedOrForNothingMappedThenEachIsAnswered)
{
	ASSERT_NO_FATAL_FAILURE(openMovable());
	peerbuf_reg_t reg = 0;
	ASSERT_PB_OK(world().registerRange(buffer_, 0x4000, 0x4000, {importer_->id}, usual_access,
					   nullptr, &reg));
	EXPECT_EQ(0, invalidate(PEERBUF_REASON_MOVE)) << "nothing mapped yet, range larger";
	EXPECT_EQ(0, invalidate(PEERBUF_REASON_MOVE)) << "again";
	EXPECT_EQ(0, resume());
	EXPECT_EQ(0, resume()) << "of what was not stopped";
	EXPECT_EQ(0, mapUp(attachment(), 0x4000, 0x1000));
	EXPECT_EQ(0, invalidate(PEERBUF_REASON_MOVE, 0, 0x1000)) << "does not touch the region";
	EXPECT_EQ(count(RECORDER_MAP), count(RECORDER_UNMAP) + 1)
		<< "a mapping that the range does not touch stays";
	EXPECT_EQ(0, resume(0, 0, 0x1000));
	EXPECT_EQ(0, invalidate(PEERBUF_REASON_MOVE, 0x4000, 0x1000));
	EXPECT_EQ(count(RECORDER_MAP), count(RECORDER_UNMAP));
	EXPECT_EQ(0, resume(1, 0x4000, 0x1000)) << "aborted";
	EXPECT_EQ(0, mapUp(attachment(), 0x4000, 0x1000));
}

/** The same against the emulated NIC, which has a data path to show the result. */
class RulesEmulated : public Rules, public testing::WithParamInterface<const char *>
{
protected:
	int read(const RegionInfo &region, std::vector<uint8_t> *data)
	{
		peerbuf_transfer transfer = {};
		transfer.struct_size = sizeof(transfer);
		transfer.op = PEERBUF_TRANSFER_READ;
		transfer.key64 = region.key64;
		transfer.remote_addr = region.remote_base;
		transfer.data = data->data();
		transfer.length = data->size();
		return importer_->ops->transfer(importer_->device, &transfer);
	}
};

TEST_P(RulesEmulated, Rule48_GivenInvalidatesThatAreRepeatedOrForNothingMappedThenDataIsRight)
{
	ASSERT_NO_FATAL_FAILURE(open("recorder:stability=moves,pin=can", GetParam()));
	std::fill_n(static_cast<uint8_t *>(buffer_.address), size, 0xA5);
	peerbuf_reg_t reg = 0;
	ASSERT_PB_OK(world().registerRange(buffer_, 0x2010, 0x4000, {importer_->id}, usual_access,
					   nullptr, &reg));
	ASSERT_EQ(PEERBUF_FLOW_MOVABLE, world().regInfo(reg).flow);
	std::vector<uint8_t> data(0x4000);
	const std::vector<uint8_t> expected(0x4000, 0xA5);
	const auto both = [&](uint64_t offset, uint64_t length, int aborted) {
		EXPECT_EQ(0, invalidate(PEERBUF_REASON_MOVE, offset, length));
		EXPECT_EQ(0, invalidate(PEERBUF_REASON_MOVE, offset, length));
		EXPECT_EQ(0, resume(aborted, offset, length));
		EXPECT_EQ(0, resume(aborted, offset, length));
		std::fill(data.begin(), data.end(), 0);
		EXPECT_EQ(0, read(world().region(reg), &data));
		EXPECT_EQ(expected, data);
	};
	both(0, size, 0);	 // right after registration
	both(0, size, 1);	 // with translations, aborted
	both(0, 0x1000, 0);	 // beside the region
	both(0x3000, 0x1000, 0); // the middle
	both(size - 0x1000, 0x1000, 0);
	EXPECT_EQ(0u, importer_->stats().violations);
}

TEST_P(RulesEmulated, Rule54_GivenARevokeThenItIsFinalHoweverOften)
{
	ASSERT_NO_FATAL_FAILURE(open("recorder:stability=moves,pin=can,revoke=may", GetParam()));
	peerbuf_reg_t reg = 0;
	ASSERT_PB_OK(registerAll(&reg));
	std::vector<uint8_t> data(0x1000);
	ASSERT_EQ(0, read(world().region(reg), &data));
	EXPECT_EQ(0, revoke());
	EXPECT_EQ(0, revoke());
	EXPECT_GT(0, read(world().region(reg), &data));
	exp_->set_revoked(device_, buffer_.handle, 0);
	resume();
	EXPECT_GT(0, read(world().region(reg), &data));
	EXPECT_EQ(0u, importer_->stats().violations);
}

std::string emulatedName(const testing::TestParamInfo<const char *> &tested)
{
	std::string why;
	return PluginSpec::parse(tested.param, &why)->label();
}

INSTANTIATE_TEST_SUITE_P(Nics, RulesEmulated,
			 testing::Values("emulated:profile=refault",
					 "emulated:profile=refault,scope=whole"),
			 emulatedName);

/* ---- revoke ------------------------------------------------------------------------------- */

TEST_F(Rules, Rule52_GivenAnImporterThenTheExporterLearnsWhatItWillHonour)
{
	struct Case {
		const char *exporter;
		const char *importer;
		uint32_t bits;
	};
	// where nothing will ever be said there is nothing to honour
	const Case cases[] = {
		{"recorder:stability=moves,pin=can,revoke=may", "recorder:invalidation=refault",
		 PEERBUF_INVALIDATION_REFAULT | PEERBUF_INVALIDATION_REVOCABLE},
		{"recorder:stability=moves,pin=can,revoke=may", "recorder:invalidation=revocable",
		 PEERBUF_INVALIDATION_REVOCABLE},
		{"recorder:stability=moves,pin=can", "recorder:invalidation=neither", 0}};
	for (const Case &c : cases) {
		World world;
		std::string why;
		const Exporter *exporter = world.addExporter(*PluginSpec::parse(c.exporter, &why));
		const Importer *importer = world.addImporter(*PluginSpec::parse(c.importer, &why));
		ASSERT_NE(nullptr, exporter);
		ASSERT_NE(nullptr, importer);
		const void *ops = nullptr;
		void *device = nullptr;
		ASSERT_PB_OK(peerbuf_exporter_open_ops(world.ctx(), exporter->id,
						       PEERBUF_RECORDER_OPS, &ops, &device));
		uint32_t told = UINT32_MAX;
		const auto hook = [](void *data, const recorder_call *call) {
			if (call->slot == RECORDER_ATTACH)
				*static_cast<uint32_t *>(data) =
					static_cast<const peerbuf_attach_request *>(call->request)
						->invalidation;
			return 0;
		};
		static_cast<const recorder_ops *>(ops)->set_hook(device, hook, &told);
		const Buffer buffer = world.alloc(*exporter, size);
		peerbuf_reg_t reg = 0;
		ASSERT_PB_OK(world.registerRange(buffer, 0, size, {importer->id}, usual_access,
						 nullptr, &reg));
		EXPECT_EQ(c.bits, told) << c.importer;
		world.close();
	}
}

TEST_F(Rules, Rule49_GivenAnImporterThatIsNotDoneThenItKeepsItsMappingAndTheOthersGo)
{
	ASSERT_NO_FATAL_FAILURE(openMovable());
	peerbuf_reg_t reg = 0;
	ASSERT_PB_OK(registerAll(&reg));
	const uint64_t slow = attachment();
	ASSERT_EQ(0, mapUp(slow));
	ASSERT_PB_OK(registerAll(&reg));
	const uint64_t quick = attachment();
	ASSERT_EQ(0, mapUp(quick));
	on(RECORDER_INVALIDATE,
	   [&](const Call &call) { return call.attachment == slow ? -EINPROGRESS : 0; });
	EXPECT_EQ(-EINPROGRESS, invalidate(PEERBUF_REASON_MOVE));
	EXPECT_PB_OK(peerbuf_progress(world().ctx()));
	const std::vector<Call> unmapped = calls(RECORDER_UNMAP);
	ASSERT_EQ(1u, unmapped.size()) << sequence();
	EXPECT_EQ(quick, unmapped[0].attachment);
	for (const Call &call : calls(RECORDER_INVALIDATE)) {
		if (call.attachment == slow)
			imp_->ticket_done(nic_, call.ticket);
	}
	EXPECT_TRUE(world().progressUntil([&] { return count(RECORDER_INVALIDATE_DONE) > 0; }));
	EXPECT_EQ(2u, count(RECORDER_UNMAP));
	EXPECT_EQ(0, resume());
}

TEST_F(Rules, Rule51_GivenAnImporterThatIsDoneAfterTheMoveWasGivenUpThenWhatItMappedSinceStays)
{
	ASSERT_NO_FATAL_FAILURE(openMovable());
	peerbuf_reg_t reg = 0;
	ASSERT_PB_OK(registerAll(&reg));
	ASSERT_EQ(0, mapUp(attachment()));
	on(RECORDER_INVALIDATE, [](const Call &) { return -EINPROGRESS; });
	EXPECT_EQ(-EINPROGRESS, invalidate(PEERBUF_REASON_MOVE));
	EXPECT_EQ(0, resume(1)); // the exporter's deadline
	EXPECT_EQ(0u, count(RECORDER_UNMAP)) << "still in use";
	ASSERT_EQ(0, mapUp(attachment()));
	imp_->ticket_done(nic_, calls(RECORDER_INVALIDATE).at(0).ticket);
	EXPECT_TRUE(world().progressUntil([&] { return count(RECORDER_INVALIDATE_DONE) > 0; }));
	const std::vector<Call> mapped = calls(RECORDER_MAP);
	const std::vector<Call> unmapped = calls(RECORDER_UNMAP);
	ASSERT_EQ(2u, mapped.size());
	ASSERT_EQ(1u, unmapped.size());
	EXPECT_EQ(mapped[0].mapping, unmapped[0].mapping);
}

TEST_F(Rules, Rule53_GivenMovesOfAnUnpinnedBufferThenItMapsAgainAsOftenAsItLikes)
{
	ASSERT_NO_FATAL_FAILURE(openMovable());
	peerbuf_reg_t reg = 0;
	ASSERT_PB_OK(registerAll(&reg));
	for (int i = 0; i < 5; i++) {
		EXPECT_EQ(0, mapUp(attachment()));
		EXPECT_EQ(0, invalidate(PEERBUF_REASON_MOVE));
		EXPECT_EQ(-EAGAIN, mapUp(attachment())) << "suspended";
		EXPECT_EQ(0, resume(i % 2));
	}
	EXPECT_EQ(0, mapUp(attachment()));
}

TEST_F(Rules, Rule53_GivenARevokedAttachmentThenNoResumeRevivesIt)
{
	ASSERT_NO_FATAL_FAILURE(openRevocable());
	peerbuf_reg_t reg = 0;
	ASSERT_PB_OK(registerAll(&reg));
	EXPECT_EQ(0, revoke());
	exp_->set_revoked(device_, buffer_.handle, 0);
	resume();
	EXPECT_EQ(-ENODEV, mapUp(attachment()));
	EXPECT_EQ(1u, world().regInfo(reg).revoked);
	EXPECT_EQ(0u, count(RECORDER_RESUME)) << "there is nothing to go on with";
	// while a newcomer is welcome
	peerbuf_reg_t fresh = 0;
	EXPECT_PB_OK(registerAll(&fresh));
	EXPECT_EQ(0u, world().regInfo(fresh).revoked);
}

TEST_F(Rules, Rule54_GivenARemapThatRacesWithARevokeThenItFails)
{
	ASSERT_NO_FATAL_FAILURE(open("recorder:stability=moves,pin=can,revoke=may",
				     "recorder:invalidation=refault"));
	peerbuf_reg_t reg = 0;
	ASSERT_PB_OK(registerAll(&reg));
	ASSERT_EQ(0, mapUp(attachment()));
	const size_t maps = count(RECORDER_MAP);
	std::thread racer;
	int rc = 1;
	on(RECORDER_INVALIDATE, [&](const Call &call) {
		if (!racer.joinable())
			racer = std::thread([&, id = call.attachment] { rc = mapUp(id); });
		return 0;
	});
	EXPECT_EQ(0, revoke());
	racer.join();
	EXPECT_EQ(-ENODEV, rc);
	EXPECT_EQ(maps, count(RECORDER_MAP)) << sequence();
}

TEST_F(Rules, Rule55_GivenARevokeThenStopUnmapUnpinInThisOrderAndOnlyOnce)
{
	ASSERT_NO_FATAL_FAILURE(openRevocable());
	peerbuf_reg_t reg = 0;
	ASSERT_PB_OK(registerAll(&reg));
	size_t from = now();
	EXPECT_EQ(0, revoke());
	EXPECT_EQ("invalidate unmap unpin", sequence(from));
	EXPECT_EQ(uint32_t{PEERBUF_REASON_REVOKE}, calls(RECORDER_INVALIDATE).at(0).reason);
	from = now();
	EXPECT_EQ(0, revoke());
	EXPECT_EQ("", sequence(from)) << "once";
	EXPECT_PB_OK(world().deregister(reg));
	EXPECT_EQ("dereg detach", sequence(from)) << "not at release either";
}

TEST_F(Rules, Rule55_GivenARevokeInProgressWhenDeregisteredThenAllIsGivenBackOnce)
{
	ASSERT_NO_FATAL_FAILURE(openRevocable());
	peerbuf_reg_t reg = 0;
	ASSERT_PB_OK(registerAll(&reg));
	on(RECORDER_INVALIDATE, [](const Call &) { return -EINPROGRESS; });
	exp_->set_revoked(device_, buffer_.handle, 1);
	EXPECT_EQ(-EINPROGRESS, invalidate(PEERBUF_REASON_REVOKE));
	EXPECT_EQ(0u, count(RECORDER_UNMAP));
	EXPECT_EQ(0u, count(RECORDER_UNPIN));
	EXPECT_PB_OK(world().deregister(reg));
	EXPECT_TRUE(world().progressUntil([&] { return count(RECORDER_INVALIDATE_DONE) > 0; }));
	EXPECT_EQ(1u, count(RECORDER_UNMAP)) << sequence();
	EXPECT_EQ(1u, count(RECORDER_UNPIN)) << sequence();
	EXPECT_EQ(1u, count(RECORDER_INVALIDATE_DONE));
	EXPECT_EQ(0, calls(RECORDER_INVALIDATE_DONE)[0].status);
}

} // namespace

} // namespace peerbuf::contract
