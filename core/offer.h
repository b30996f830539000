// SPDX-License-Identifier: BSD-3-Clause
#ifndef PEERBUF_CORE_OFFER_H
#define PEERBUF_CORE_OFFER_H

#include <string>

#include <peerbuf/exporter.h>
#include <peerbuf/importer.h>
#include <peerbuf/types.h>

#include "core/range.h"

namespace peerbuf
{

/**
 * Whether an offer can be believed: every enumeration set and known, no contradiction, nothing
 * promised whose slots the plugin lacks. The error names both facts. Pure.
 *
 * @param capabilities PEERBUF_EXPORTER_CAP_* of the plugin.
 */
Result<void> validate(const peerbuf_exporter_offer &offer, uint32_t capabilities,
		      const std::string &name);
/** @param capabilities PEERBUF_IMPORTER_CAP_* of the plugin. */
Result<void> validate(const peerbuf_importer_offer &offer, uint32_t capabilities,
		      const std::string &name);

} // namespace peerbuf

#endif
