// SPDX-License-Identifier: BSD-3-Clause
#include "policy_option.h"

#include <cstdint>
#include <cstring>

namespace peerbuf::tools
{

namespace
{

struct Choice {
	const char *key;
	const char *value;
	uint32_t peerbuf_policy::*field;
	uint32_t means;
};

constexpr Choice choices[] = {
	{"placement", "device_only", &peerbuf_policy::host_placement_ok, 0},
	{"placement", "host_ok", &peerbuf_policy::host_placement_ok, 1},
	{"staging", "never", &peerbuf_policy::staging_ok, 0},
	{"staging", "allow", &peerbuf_policy::staging_ok, 1},
	{"pins", "within_limit", &peerbuf_policy::pins, PEERBUF_PINS_WITHIN_LIMIT},
	{"pins", "dedicated", &peerbuf_policy::pins, PEERBUF_PINS_DEDICATED},
	{"rekey", "no", &peerbuf_policy::rekey_ok, 0},
	{"rekey", "yes", &peerbuf_policy::rekey_ok, 1},
	{"ceiling", "Movable", &peerbuf_policy::ceiling, PEERBUF_FLOW_MOVABLE},
	{"ceiling", "Revocable", &peerbuf_policy::ceiling, PEERBUF_FLOW_REVOCABLE},
	{"ceiling", "Pinned", &peerbuf_policy::ceiling, PEERBUF_FLOW_PINNED},
};

} // namespace

std::string readPolicyOption(const std::string &text, peerbuf_policy *policy)
{
	for (const Choice &choice : choices) {
		if (text == std::string(choice.key) + "=" + choice.value) {
			policy->*choice.field = choice.means;
			return "";
		}
	}
	return "policy '" + text + "' is not known; there are: " + policyOptionList();
}

std::string policyOptionList()
{
	std::string list;
	const char *key = "";
	for (const Choice &choice : choices) {
		if (strcmp(key, choice.key) == 0)
			list += std::string("|") + choice.value;
		else
			list += std::string(list.empty() ? "" : ", ") + choice.key + "=" +
				choice.value;
		key = choice.key;
	}
	return list;
}

} // namespace peerbuf::tools
