// SPDX-License-Identifier: BSD-3-Clause
#include "verbs_peer.h"

#include "tools/peerbuf/verbs_side.h"

namespace peerbuf::contract
{

namespace
{

class VerbsObjects final : public ImporterObjects
{
public:
	explicit VerbsObjects(std::unique_ptr<tools::VerbsSide> made) : side(std::move(made)) {}
	const void *objects() const override { return side->objects(); }

	const std::unique_ptr<tools::VerbsSide> side;
};

class VerbsPeer final : public Peer
{
public:
	explicit VerbsPeer(tools::VerbsSide &side) : side_(side) {}

	int write(const RegionInfo &region, uint64_t offset, const void *data,
		  size_t length) override
	{
		// one data pointer for both ways; a write only reads from it
		return transfer(region, true, offset, const_cast<void *>(data), length);
	}
	int read(const RegionInfo &region, uint64_t offset, void *data, size_t length) override
	{
		return transfer(region, false, offset, data, length);
	}

private:
	int transfer(const RegionInfo &region, bool write, uint64_t offset, void *data,
		     size_t length)
	{
		std::string ignored; // the status says which it was
		return side_.transfer(region, write, offset, static_cast<uint8_t *>(data), length,
				      ignored);
	}

	tools::VerbsSide &side_;
};

} // namespace

std::unique_ptr<ImporterObjects> makeVerbsObjects(const std::string &device, std::string *ret_why)
{
	std::unique_ptr<tools::VerbsSide> side = tools::VerbsSide::create(device, *ret_why);
	return side ? std::make_unique<VerbsObjects>(std::move(side)) : nullptr;
}

std::unique_ptr<Peer> makeVerbsPeer(ImporterObjects &target)
{
	// the importer's objects are of this very kind: the suite made them for "verbs"
	return std::make_unique<VerbsPeer>(*static_cast<VerbsObjects &>(target).side);
}

} // namespace peerbuf::contract
