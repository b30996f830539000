// SPDX-License-Identifier: BSD-3-Clause
/*
 * The parts that need libfabric, where it was not there at build time.
 */
#include <cstdio>

#include "demo_peer.h"
#include "demo_target.h"
#include "exit_code.h"
#include "fabric_side.h"

namespace peerbuf::tools
{

std::unique_ptr<FabricSide> FabricSide::create(const std::string &, std::string &error)
{
	error = "peerbuf was built without libfabric";
	return nullptr;
}

const std::vector<std::string> &fabricProviders()
{
	static const std::vector<std::string> none;
	return none;
}

std::string findProvider(const std::string &)
{
	return "";
}

std::string defaultProvider()
{
	return "";
}

bool canFollowMoves(const std::string &)
{
	return false;
}

bool peersMayUseCma(const std::string &)
{
	return false;
}

bool runsWithoutCma()
{
	return true;
}

int runDemoTarget()
{
	fprintf(stderr, "peerbuf was built without libfabric\n");
	return exitMissing;
}

int runDemoPeer()
{
	return runDemoTarget();
}

} // namespace peerbuf::tools
