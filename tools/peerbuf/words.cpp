// SPDX-License-Identifier: BSD-3-Clause
#include "words.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include <sys/wait.h>

#include <peerbuf/exporter.h>
#include <peerbuf/importer.h>
#include <peerbuf/peerbuf.h>

namespace peerbuf::tools
{

namespace
{

struct BitName {
	uint32_t bit;
	const char *name;
};

constexpr BitName exporterBits[] = {
	{PEERBUF_EXPORTER_CAP_ALLOC, "alloc"},	 {PEERBUF_EXPORTER_CAP_GET, "get"},
	{PEERBUF_EXPORTER_CAP_PIN, "pin"},	 {PEERBUF_EXPORTER_CAP_MAP, "map"},
	{PEERBUF_EXPORTER_CAP_FD, "dma-buf"},	 {PEERBUF_EXPORTER_CAP_INVALIDATE, "invalidate"},
	{PEERBUF_EXPORTER_CAP_EVENTS, "events"}, {PEERBUF_EXPORTER_CAP_OPS, "ops"},
};

constexpr BitName importerBits[] = {
	{PEERBUF_IMPORTER_CAP_INVALIDATE, "invalidate"},
	{PEERBUF_IMPORTER_CAP_RESUME, "resume"},
	{PEERBUF_IMPORTER_CAP_EVENTS, "events"},
	{PEERBUF_IMPORTER_CAP_OPS, "ops"},
	{PEERBUF_IMPORTER_CAP_GATE, "gate"},
};

template <size_t N> std::vector<std::string> bitWords(const BitName (&names)[N], uint32_t bits)
{
	std::vector<std::string> words;
	for (const BitName &known : names) {
		if (bits & known.bit)
			words.emplace_back(known.name);
		bits &= ~known.bit;
	}
	if (bits)
		words.push_back("unknown bits " + std::to_string(bits));
	return words;
}

std::optional<uint64_t> parsed(std::string_view text, bool suffix)
{
	int base = 10;
	if (text.starts_with("0x")) {
		base = 16;
		text.remove_prefix(2);
	}
	uint64_t n = 0;
	const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n, base);
	if (error != std::errc())
		return std::nullopt;
	const std::string_view rest(end, static_cast<size_t>(text.data() + text.size() - end));
	if (rest.empty())
		return n;
	const size_t power = std::string_view("KMGT").find(rest[0]);
	if (!suffix || rest.size() != 1 || power == std::string_view::npos)
		return std::nullopt;
	const unsigned shift = 10 * (static_cast<unsigned>(power) + 1);
	if (n > (UINT64_MAX >> shift))
		return std::nullopt;
	return n << shift;
}

} // namespace

std::string errnoWord(int err)
{
	const int value = std::abs(err);
	const char *name = strerrorname_np(value);
	return name ? name : "errno " + std::to_string(value);
}

std::string endingWords(int status)
{
	if (WIFEXITED(status))
		return "exited with " + std::to_string(WEXITSTATUS(status));
	const int sig = WTERMSIG(status);
	const char *name = sigabbrev_np(sig);
	return "was killed by signal " + std::to_string(sig) +
	       (name ? " (SIG" + std::string(name) + ")" : "");
}

std::string placementWords(uint32_t placement)
{
	switch (placement) {
	case 0:
		return "none";
	case PEERBUF_PLACEMENT_DEVICE:
		return "device";
	case PEERBUF_PLACEMENT_HOST:
		return "host";
	case PEERBUF_PLACEMENT_DEVICE | PEERBUF_PLACEMENT_HOST:
		return "device+host";
	default:
		return "unknown(" + std::to_string(placement) + ")";
	}
}

std::vector<std::string> capabilityWords(uint32_t pluginKind, uint32_t capabilities)
{
	return pluginKind == PEERBUF_PLUGIN_EXPORTER ? bitWords(exporterBits, capabilities)
						     : bitWords(importerBits, capabilities);
}

std::string joined(const std::vector<std::string> &words, const char *separator)
{
	std::string list;
	for (const std::string &word : words)
		list += (list.empty() ? "" : separator) + word;
	return words.empty() ? "none" : list;
}

std::string bytesWords(uint64_t bytes)
{
	static constexpr const char *units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
	auto value = static_cast<double>(bytes);
	size_t unit = 0;
	while (value >= 1024 && unit + 1 < std::size(units)) {
		value /= 1024;
		unit++;
	}
	char text[32];
	snprintf(text, sizeof(text), unit && value < 100 ? "%.1f %s" : "%.0f %s", value,
		 units[unit]);
	return text;
}

std::optional<uint64_t> parseBytes(std::string_view text)
{
	return parsed(text, true);
}

std::optional<uint64_t> parseNumber(std::string_view text)
{
	return parsed(text, false);
}

std::string toHex(const std::vector<uint8_t> &bytes)
{
	static constexpr char digits[] = "0123456789abcdef";
	std::string text;
	for (const uint8_t byte : bytes) {
		text += digits[byte >> 4];
		text += digits[byte & 15];
	}
	return text;
}

std::optional<std::vector<uint8_t>> fromHex(std::string_view text, size_t most)
{
	if (text.size() % 2 || text.size() / 2 > most)
		return std::nullopt;
	std::vector<uint8_t> bytes;
	for (size_t i = 0; i < text.size(); i += 2) {
		uint8_t byte = 0;
		const char *from = text.data() + i;
		const auto [end, error] = std::from_chars(from, from + 2, byte, 16);
		if (error != std::errc() || end != from + 2)
			return std::nullopt;
		bytes.push_back(byte);
	}
	return bytes;
}

std::string wrapped(std::string_view text, size_t width, size_t indent)
{
	std::string out;
	size_t used = 0;
	while (!text.empty()) {
		const size_t end = std::min(text.find(' '), text.size());
		if (used && used + 1 + end > width) {
			out += "\n" + std::string(indent, ' ');
			used = 0;
		} else if (used) {
			out += ' ';
			used++;
		}
		out += text.substr(0, end);
		used += end;
		text.remove_prefix(std::min(end + 1, text.size()));
	}
	return out;
}

} // namespace peerbuf::tools
