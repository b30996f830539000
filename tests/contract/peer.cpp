// SPDX-License-Identifier: BSD-3-Clause
#include "peer.h"

#include "fabric_peer.h"
#include "verbs_peer.h"

namespace peerbuf::contract
{

namespace
{

/** Through the operations of testing.h. */
class TestOpsPeer : public Peer
{
public:
	explicit TestOpsPeer(const Importer &importer) : importer_(importer) {}

	int write(const RegionInfo &region, uint64_t offset, const void *data,
		  size_t length) override
	{
		// the interface has one data pointer for both ways; a write only reads from it
		return transfer(region, PEERBUF_TRANSFER_WRITE, offset, const_cast<void *>(data),
				length);
	}
	int read(const RegionInfo &region, uint64_t offset, void *data, size_t length) override
	{
		return transfer(region, PEERBUF_TRANSFER_READ, offset, data, length);
	}

private:
	int transfer(const RegionInfo &region, uint32_t op, uint64_t offset, void *data,
		     size_t length)
	{
		peerbuf_transfer transfer = {};
		transfer.struct_size = sizeof(transfer);
		transfer.op = op;
		transfer.key64 = region.key64;
		transfer.remote_addr = region.remote_base + offset;
		transfer.data = data;
		transfer.length = length;
		return importer_.ops->transfer(importer_.device, &transfer);
	}

	const Importer &importer_;
};

} // namespace

std::unique_ptr<Peer> makePeer(Importer &importer, std::string *ret_why)
{
	if (HAS_OP(importer.ops, transfer))
		return std::make_unique<TestOpsPeer>(importer);
	if (importer.objects && importer.spec.name == "verbs")
		return makeVerbsPeer(*importer.objects);
	if (importer.objects)
		return makeFabricPeer(*importer.objects, ret_why);
	*ret_why = "importer " + importer.spec.text() +
		   " offers no data path: no transfer in its table " PEERBUF_IMPORTER_TEST_OPS;
	return nullptr;
}

} // namespace peerbuf::contract
