// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_TOOLS_POLICY_OPTION_H
#define PEERBUF_TOOLS_POLICY_OPTION_H

#include <string>

#include <peerbuf/peerbuf.h>

namespace peerbuf::tools
{

/** Take "key=value" into @p policy. @return "", or what is wrong and what there is. */
std::string readPolicyOption(const std::string &text, peerbuf_policy *policy);

/** "key=a|b, key=c|d". */
std::string policyOptionList();

} // namespace peerbuf::tools

#endif
