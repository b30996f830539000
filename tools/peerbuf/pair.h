// SPDX-License-Identifier: BSD-3-Clause
/**
 * @file pair.h
 * One exporter with one importer, tried by a real registration.
 */
#ifndef PEERBUF_TOOLS_PAIR_H
#define PEERBUF_TOOLS_PAIR_H

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <peerbuf/peerbuf.hpp>
#include <peerbuf/testing.h>

#include "fabric_side.h"
#include "output.h"
#include "plugin_spec.h"
#include "verbs_side.h"

namespace peerbuf::tools
{

/** A failure of the command: what it ends with, and why. */
struct Failure {
	int exitCode = 0;
	std::string why;
	/** There is nothing of the kind on this machine, or not for this user: no fault. */
	bool absent = false;
};

struct ExporterSide {
	PluginSpec spec;
	ExporterHandle handle;
	peerbuf_exporter_offer offer = {};
	const peerbuf_exporter_test_ops *ops = nullptr; /* NULL: the plugin has none */
	void *device = nullptr;

	bool open(const Context &ctx, const PluginSpec &what, Failure *ret_failure);
};

struct ImporterSide {
	PluginSpec spec;		    /* with the provider that was obtained */
	std::unique_ptr<FabricSide> fabric; /* outlives the handle */
	std::unique_ptr<VerbsSide> verbs;   /* likewise */
	ImporterHandle handle;
	peerbuf_importer_offer offer = {};
	const peerbuf_importer_test_ops *ops = nullptr;
	void *device = nullptr;

	/**
	 * For "fabric" the option provider is the command's own, for "verbs" device: the objects
	 * are made with them.
	 */
	bool open(const Context &ctx, const PluginSpec &what, Failure *ret_failure);
	/** "emulated NIC", "software RMA", "RDMA device": what moves the bytes. */
	std::string kind() const;
};

/** Whether plugin @p name is there and usable; else what is wrong, or what there is. */
bool findPlugin(const Context &ctx, peerbuf_plugin_kind kind, const std::string &name,
		Failure *ret_failure);

/** Copies of the refusals of a registration, or of the last error if @p reg is 0. */
std::vector<peerbuf_refusal> refusalsOf(const Context &ctx, peerbuf_reg_t reg);
/** "not Movable: importer ... (refault): ..." */
std::string refusalText(const peerbuf_refusal &refusal);
Json refusalJson(const peerbuf_refusal &refusal);

struct PairResult {
	std::string exporter;
	std::string importer;
	uint32_t flow = PEERBUF_FLOW_NONE;
	uint32_t howKnown = 0; /* 0 where there is no flow */
	uint32_t kernelFlow = PEERBUF_FLOW_NONE;
	uint32_t placement = 0;
	bool software = false;
	std::optional<bool> verified; /* nothing: there is no data path to try */
	bool deviceSideChecked = false;
	std::vector<peerbuf_refusal> refusals;
	std::string error; /* what went wrong, where it was no refusal */

	/** "Pinned", "refused", "error". */
	std::string outcome() const;
	bool bad() const { return !error.empty(); }
	Json json() const;
};

/**
 * Register scratch memory of the exporter, let a peer write and read it at its first, interior and
 * last bytes, and undo it all.
 */
PairResult tryPair(const Context &ctx, const ExporterSide &exporter, const ImporterSide &importer,
		   const peerbuf_policy *policy);

} // namespace peerbuf::tools

#endif
