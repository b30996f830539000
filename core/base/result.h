// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_CORE_BASE_RESULT_H
#define PEERBUF_CORE_BASE_RESULT_H

#include <cstring>
#include <sstream>
#include <string>
#include <utility>

#include <tl/expected.hpp>

#include "core/base/error.h"

namespace peerbuf
{

/** A value or an Error. The only place that names tl::expected. */
template <typename T> using Result = tl::expected<T, Error>;

/** Everything printable, one after the other. */
template <typename... Parts> std::string text(const Parts &...parts)
{
	std::ostringstream out;
	(out << ... << parts);
	return out.str();
}

/** return fail(PEERBUF_ERR_QUOTA, EDQUOT, "need ", n); @param err positive errno. */
template <typename... Parts> tl::unexpected<Error> fail(Errc code, int err, const Parts &...parts)
{
	return tl::unexpected<Error>(Error{code, err, text(parts...)});
}

inline tl::unexpected<Error> fail(Error error)
{
	return tl::unexpected<Error>(std::move(error));
}

/** Copy into a fixed field of the ABI, cut if too long, always terminated. */
template <size_t N> void copyText(char (&to)[N], const std::string &from)
{
	const size_t n = from.size() < N - 1 ? from.size() : N - 1;
	memcpy(to, from.data(), n);
	memset(to + n, 0, N - n);
}

} // namespace peerbuf

#endif
