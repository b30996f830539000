// SPDX-License-Identifier: BSD-3-Clause
#include "errors.h"

#include <array>
#include <cctype>
#include <cstring>

namespace peerbuf::test
{

std::string errnoName(int rc)
{
	const char *name = strerrorname_np(rc < 0 ? -rc : rc);
	return std::string(rc < 0 ? "-" : "") + (name ? name : "?") + " (" + std::to_string(rc) +
	       ")";
}

LastError LastError::take()
{
	const peerbuf_error *last = peerbuf_last_error();
	LastError copy;
	copy.errc = last->errc;
	copy.err = last->err;
	copy.what = last->what ? last->what : "";
	copy.refusals.assign(last->refusals, last->refusals + last->n_refusals);
	return copy;
}

std::string LastError::text() const
{
	std::string all = errnoName(err) + " " + peerbuf_errc_name(errc) + ": " + what;
	for (const peerbuf_refusal &r : refusals)
		all += std::string("; ") + peerbuf_flow_name(r.flow) + " refused by " + r.who +
		       " (" + r.capability + "): " + r.why;
	return all;
}

testing::AssertionResult succeeded(const char *expression, int rc)
{
	if (rc >= 0)
		return testing::AssertionSuccess() << expression << " returned " << rc;
	return testing::AssertionFailure() << expression << " returned " << errnoName(rc)
					   << "; last error: " << LastError::take().text();
}

testing::AssertionResult failedWith(const char *rc_expression, const char *err_expression,
				    const char *errc_expression, int rc, int err, uint32_t errc)
{
	const LastError last = LastError::take();
	if (rc != err)
		return testing::AssertionFailure()
		       << rc_expression << " returned " << errnoName(rc) << ", expected "
		       << err_expression << (rc < 0 ? "; last error: " + last.text() : "");
	if (last.err != rc)
		return testing::AssertionFailure()
		       << rc_expression << " returned " << errnoName(rc)
		       << ", but the last error is another: " << last.text();
	if (last.errc != errc)
		return testing::AssertionFailure()
		       << rc_expression << " gave class " << peerbuf_errc_name(last.errc)
		       << ", expected " << errc_expression << ": " << last.text();
	if (last.what.empty())
		return testing::AssertionFailure() << rc_expression << " failed without a word";
	return testing::AssertionSuccess();
}

namespace
{

/** A whole word of digits, so that 4096 is not found in 140960. */
bool hasWord(const std::string &text, const std::string &word)
{
	for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
		const size_t end = at + word.size();
		const bool before =
			at == 0 || !std::isalnum(static_cast<unsigned char>(text[at - 1]));
		const bool after =
			end == text.size() || !std::isalnum(static_cast<unsigned char>(text[end]));
		if (before && after)
			return true;
	}
	return false;
}

} // namespace

testing::AssertionResult mentions(const std::string &text, uint64_t number)
{
	std::array<char, 32> hex;
	snprintf(hex.data(), hex.size(), "0x%llx", static_cast<unsigned long long>(number));
	if (hasWord(text, std::to_string(number)) || hasWord(text, hex.data()))
		return testing::AssertionSuccess();
	unsigned shift = 10;
	for (const char *unit : {" KiB", " MiB", " GiB"}) {
		const uint64_t one = uint64_t{1} << shift;
		if (number != 0 && number % one == 0 &&
		    hasWord(text, std::to_string(number / one) + unit))
			return testing::AssertionSuccess();
		shift += 10;
	}
	return testing::AssertionFailure()
	       << "neither " << number << " nor " << hex.data() << " is in: " << text;
}

} // namespace peerbuf::test
