// SPDX-License-Identifier: BSD-3-Clause
/**
 * @file words.h
 * Values in the words of the contract, as every report of the command spells them.
 */
#ifndef PEERBUF_TOOLS_WORDS_H
#define PEERBUF_TOOLS_WORDS_H

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace peerbuf::tools
{

/** "EDQUOT" for 122 or -122; "0" for 0. */
std::string errnoWord(int err);
/** "was killed by signal 9 (SIGKILL)", "exited with 3"; @p status as of waitpid. */
std::string endingWords(int status);
/** "device", "host", "device+host". */
std::string placementWords(uint32_t placement);
std::vector<std::string> capabilityWords(uint32_t pluginKind, uint32_t capabilities);

/** "a, b, c"; "none" for an empty list. */
std::string joined(const std::vector<std::string> &words, const char *separator = ", ");
/** "1.5 MiB". */
std::string bytesWords(uint64_t bytes);

/** A whole number of bytes; K, M, G or T (powers of 1024) may follow. */
std::optional<uint64_t> parseBytes(std::string_view text);
/** A whole number, decimal or 0x... */
std::optional<uint64_t> parseNumber(std::string_view text);

/** "00ff"; and back, at most @p most bytes. */
std::string toHex(const std::vector<uint8_t> &bytes);
std::optional<std::vector<uint8_t>> fromHex(std::string_view text, size_t most);

/** @p text in lines of at most @p width, all but the first after @p indent more spaces. */
std::string wrapped(std::string_view text, size_t width, size_t indent);

} // namespace peerbuf::tools

#endif
