// SPDX-License-Identifier: BSD-3-Clause
/**
 * @file mover.hpp
 * How an exporter moves memory slice by slice without stopping anybody for long.
 *
 * A pure state machine: it decides what is next, its owner does it and reports back. So the same
 * rules (bounded pauses, a duty cycle, deadlines, roll-back by the same protocol) hold for every
 * exporter that uses it, and can be tested without one. Header only.
 */
#ifndef PEERBUF_MOVER_HPP
#define PEERBUF_MOVER_HPP

#include <algorithm>
#include <cerrno>
#include <cstdint>

namespace peerbuf::plugin
{

struct MovePolicy {
	enum class Past { Abort, Wait, Revoke };

	uint64_t maxPauseNs = 500'000; /* wanted bound of one pause */
	uint32_t dutyPercent = 50;     /* most of the time that a gate may be closed, 1..100 */
	uint64_t deadlineNs = 1'000'000'000; /* for the tickets of one slice; 0: none */
	Past past = Past::Abort;
	bool whole = false; /* one slice: an importer can only be stopped as a whole */
};

/**
 * One move of [0, length). Thread-bound. The owner asks step(now) what to do, does it, and calls
 * the report that belongs to it; then it asks again.
 *
 *     Invalidate  stop importers of the slice     → letGo, once all of them have
 *     Copy        copy the slice                  → copied or copyFailed
 *     Resume      importers may go on             → resumed
 *     Wait        nothing before step.until, or before letGo
 *     Revoke      the deadline passed: take the slice's buffer back; then the move is over
 *     Done        over; see result()
 *
 * A pause is what lies between Invalidate and Resume of one slice.
 */
class Mover
{
public:
	enum class Do { Invalidate, Copy, Resume, Wait, Revoke, Done };

	struct Step {
		Do what = Do::Done;
		uint64_t offset = 0;
		uint64_t length = 0;
		bool back = false;    /* from the new place to the old one: rolling back */
		bool aborted = false; /* Resume: the slice stayed where it was */
		uint64_t until = 0;   /* Wait: ns; 0: only a report ends it */
	};

	/** @param page smallest slice, bytes; divides @p length. @param bytesPerUs a first guess.
	 */
	Mover(uint64_t length, uint64_t page, const MovePolicy &policy, uint64_t bytesPerUs = 2000)
	    : length_(length),
	      page_(page),
	      policy_(policy),
	      bytesPerUs_(std::max<uint64_t>(bytesPerUs, 1))
	{
	}

	Step step(uint64_t now)
	{
		switch (phase_) {
		case Phase::Rest:
			if (now < restUntil_)
				return Step{Do::Wait, 0, 0, back_, false, restUntil_};
			return beginSlice(now);
		case Phase::Drain:
			return drain(now);
		case Phase::Copy:
			copyAt_ = now;
			return slice(Do::Copy);
		case Phase::Resume:
			return slice(Do::Resume);
		case Phase::Over:
			break;
		}
		return Step{};
	}

	/** Every importer has let go of the slice. Late ones of an aborted slice are not reported.
	 */
	void letGo(uint64_t now)
	{
		if (phase_ != Phase::Drain)
			return;
		copyAt_ = now;
		phase_ = Phase::Copy;
	}
	/** An importer cannot let go. @param status negative errno. */
	void refused(int status)
	{
		if (phase_ != Phase::Drain)
			return;
		if (back_)
			giveUp();
		else
			abort(status);
	}
	/** In place of copied: the slice could not be copied; what it is a copy of is still good.
	 */
	void copyFailed(int status)
	{
		if (phase_ != Phase::Copy)
			return;
		if (sliceBack_) {
			giveUp();
			return;
		}
		if (!back_)
			result_ = status;
		back_ = true;
		sliceAborted_ = true;
		phase_ = Phase::Resume;
	}
	void copied(uint64_t now)
	{
		if (phase_ != Phase::Copy)
			return;
		const uint64_t ns = std::max<uint64_t>(now - copyAt_, 1);
		copyNs_ += ns;
		learn(sliceLength_, ns);
		phase_ = Phase::Resume;
	}
	void resumed(uint64_t now)
	{
		if (phase_ != Phase::Resume)
			return;
		const uint64_t pause = now - invalidatedAt_;
		longestPause_ = std::max(longestPause_, pause);
		slices_++;
		if (!sliceAborted_)
			overhead(pause > sliceCopyNs_ ? pause - sliceCopyNs_ : 0);
		if (sliceAborted_)
			sliceAborted_ = false;
		else if (sliceBack_)
			done_ -= sliceLength_;
		else
			done_ += sliceLength_;
		// At least as long open as it was closed, at 50 %: traffic cannot starve.
		restUntil_ = restAfter(now, pause);
		if (stuck_ || (back_ ? !done_ : done_ == length_)) {
			phase_ = Phase::Over;
			return;
		}
		phase_ = Phase::Rest;
	}

	/** Undo what was moved, by the same protocol. No effect once it is over. @param why -errno.
	 */
	void abort(int why)
	{
		if (phase_ == Phase::Over || back_)
			return;
		result_ = why;
		back_ = true;
		if (phase_ == Phase::Drain) { // the slice never left
			sliceAborted_ = true;
			phase_ = Phase::Resume;
		} else if (phase_ == Phase::Rest && !done_) {
			phase_ = Phase::Over;
		}
	}

	/** When step() should be asked again without a report, ns; UINT64_MAX: only a report helps.
	 */
	uint64_t due() const
	{
		if (phase_ == Phase::Rest)
			return restUntil_;
		if (phase_ != Phase::Drain)
			return 0;
		const bool bounded =
			policy_.deadlineNs && !back_ && policy_.past != MovePolicy::Past::Wait;
		return bounded ? invalidatedAt_ + policy_.deadlineNs : UINT64_MAX;
	}
	/** Whether a part of [offset, offset + length) is stopped at this moment. */
	bool away(uint64_t offset, uint64_t length) const
	{
		const bool stopped =
			phase_ == Phase::Drain || phase_ == Phase::Copy || phase_ == Phase::Resume;
		return stopped && sliceOffset_ < offset + length &&
		       offset < sliceOffset_ + sliceLength_;
	}

	/** Between two slices, or before the first: nothing is stopped. */
	bool resting() const { return phase_ == Phase::Rest; }
	/** Until when what was stopped is to be left alone, by the duty cycle, ns. */
	uint64_t restUntilNs() const { return restUntil_; }
	/** The same for a pause of @p ns that ends at @p now. */
	uint64_t restAfter(uint64_t now, uint64_t ns) const
	{
		return now + ns * (100 - duty()) / duty();
	}
	bool over() const { return phase_ == Phase::Over; }
	/** 0, or why it was aborted or revoked. */
	int result() const { return result_; }
	bool rollingBack() const { return back_; }
	/** It could not go back either: the memory stays at two places. */
	bool stuck() const { return stuck_; }
	/** [0, moved()) is at the new place. */
	uint64_t moved() const { return done_; }
	uint64_t slices() const { return slices_; }
	uint64_t copyNs() const { return copyNs_; }
	uint64_t longestPauseNs() const { return longestPause_; }
	/** What one slice is expected to take from Invalidate to Resume. */
	uint64_t expectedPauseNs() const { return overheadNs_ + sliceLength_ * 1000 / bytesPerUs_; }
	/** The bound that can be kept: the policy's, or what the smallest slice needs. */
	uint64_t effectiveMaxPauseNs() const
	{
		const uint64_t slice =
			policy_.whole ? length_
				      : std::max(page_, leastCopyNs() * bytesPerUs_ / 1000);
		return std::max(policy_.maxPauseNs, overheadNs_ + slice * 1000 / bytesPerUs_);
	}

private:
	enum class Phase { Rest, Drain, Copy, Resume, Over };

	uint64_t duty() const { return std::clamp<uint64_t>(policy_.dutyPercent, 1, 100); }

	Step slice(Do what) const
	{
		return Step{what, sliceOffset_, sliceLength_, sliceBack_, sliceAborted_, 0};
	}

	Step beginSlice(uint64_t now)
	{
		const uint64_t left = back_ ? done_ : length_ - done_;
		sliceLength_ = policy_.whole ? left : std::min(left, sliceBytes());
		sliceOffset_ = back_ ? done_ - sliceLength_ : done_;
		sliceBack_ = back_;
		invalidatedAt_ = now;
		phase_ = Phase::Drain;
		return slice(Do::Invalidate);
	}

	/** There is nothing left to fall back to: the slice stays where it is, and so do the rest.
	 */
	void giveUp()
	{
		stuck_ = true;
		sliceAborted_ = true;
		phase_ = Phase::Resume;
	}

	Step drain(uint64_t now)
	{
		const uint64_t deadline =
			policy_.deadlineNs ? invalidatedAt_ + policy_.deadlineNs : 0;
		// On the way back there is no deadline: the importers must let go some time, and
		// both places stay charged until they do.
		if (!deadline || back_ || policy_.past == MovePolicy::Past::Wait)
			return Step{Do::Wait, sliceOffset_, sliceLength_, back_, false, 0};
		if (now < deadline)
			return Step{Do::Wait, sliceOffset_, sliceLength_, back_, false, deadline};
		if (policy_.past == MovePolicy::Past::Abort) {
			abort(-ETIMEDOUT);
			return slice(Do::Resume);
		}
		result_ = -ETIMEDOUT;
		phase_ = Phase::Over;
		return slice(Do::Revoke);
	}

	/**
	 * Where stopping and resuming take most of a pause, smaller slices make more pauses and
	 * hardly shorter ones. So a part of each is left for copying, whatever the rest takes.
	 */
	uint64_t leastCopyNs() const { return policy_.maxPauseNs / 4; }

	/** As many pages as fit into the pause beside what stopping and resuming cost. */
	uint64_t sliceBytes() const
	{
		const uint64_t left =
			policy_.maxPauseNs > overheadNs_ ? policy_.maxPauseNs - overheadNs_ : 0;
		// A fifth is left for what no average foresees.
		const uint64_t bytes = std::max(left, leastCopyNs()) * bytesPerUs_ / 1000 / 5 * 4;
		return std::max(bytes / page_ * page_, page_);
	}

	// What follows learns from what is usual. A slice in which a thread lost its CPU is off by
	// a factor of ten or more and says nothing about the next; so one sample counts for no more
	// than a step. What has really changed is arrived at by several.

	void learn(uint64_t bytes, uint64_t ns)
	{
		sliceCopyNs_ = ns;
		const uint64_t rate = std::max<uint64_t>(bytes * 1000 / ns, 1);
		// Down fast, up slowly: a pause that is too long is worse than one too many.
		bytesPerUs_ = rate < bytesPerUs_
				      ? (bytesPerUs_ + std::max(rate, bytesPerUs_ / 2)) / 2
				      : (7 * bytesPerUs_ + rate) / 8;
		bytesPerUs_ = std::max<uint64_t>(bytesPerUs_, 1);
	}

	void overhead(uint64_t ns)
	{
		const uint64_t most = overheadNs_ + overheadNs_ / 2 + 5000;
		overheadNs_ = (7 * overheadNs_ + std::min(ns, most)) / 8;
	}

	const uint64_t length_;
	const uint64_t page_;
	const MovePolicy policy_;
	uint64_t bytesPerUs_;
	uint64_t overheadNs_ = 20'000;

	Phase phase_ = Phase::Rest;
	bool back_ = false;
	bool sliceBack_ = false;
	bool sliceAborted_ = false;
	bool stuck_ = false;
	int result_ = 0;
	uint64_t done_ = 0;
	uint64_t sliceOffset_ = 0;
	uint64_t sliceLength_ = 0;
	uint64_t sliceCopyNs_ = 0;
	uint64_t invalidatedAt_ = 0;
	uint64_t copyAt_ = 0; /* when copying began, and not when it could have */
	uint64_t restUntil_ = 0;
	uint64_t slices_ = 0;
	uint64_t copyNs_ = 0;
	uint64_t longestPause_ = 0;
};

} // namespace peerbuf::plugin

#endif
