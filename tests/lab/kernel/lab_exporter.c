// SPDX-License-Identifier: GPL-2.0
/*
 * An exporter of dma-bufs for tests: it moves, revokes and refuses on request. What an importer
 * does wrong shows: until a move is over the new place holds FRESH, and the old one holds STALE as
 * soon as the importers were told, which is looked at once more before it is freed.
 */

#include <linux/completion.h>
#include <linux/dma-buf.h>
#include <linux/dma-fence.h>
#include <linux/dma-mapping.h>
#include <linux/dma-resv.h>
#include <linux/fs.h>
#include <linux/highmem.h>
#include <linux/iosys-map.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/vmalloc.h>
#include <linux/workqueue.h>

#include "lab_exporter.h"

#define FRESH 0xee
#define STALE 0xdd
#define MAX_SIZE (64UL << 20)
#define MAX_REPEATED (8UL << 30)

struct lab_buffer {
	struct dma_buf *dmabuf;
	size_t npages;
	size_t nown; /* of the pages, from the first on; the others repeat them */
	struct page **pages;

	/* Under the reservation */
	bool revoked;
	unsigned int pins;
	unsigned int mapped;
	u32 refuse;
	int refuse_error;
	ktime_t told;
	struct lab_exporter_stats stats;

	wait_queue_head_t unmapped;

	/* One move at a time */
	struct mutex move_lock;
	struct delayed_work arrival;
	struct page **leaving; /* the content on its way */
	struct page **left;    /* the old place */
	struct dma_fence *fence;
};

static void lab_free_pages(struct page **pages, size_t npages)
{
	size_t i;

	if (!pages)
		return;
	for (i = 0; i < npages && pages[i]; i++)
		__free_page(pages[i]);
	kvfree(pages);
}

static struct page **lab_alloc_pages(size_t npages, size_t nown, u8 value)
{
	struct page **pages = kvcalloc(npages, sizeof(*pages), GFP_KERNEL);
	size_t i;

	if (!pages)
		return NULL;
	for (i = 0; i < nown; i++) {
		pages[i] = alloc_page(GFP_KERNEL);
		if (!pages[i]) {
			lab_free_pages(pages, nown);
			return NULL;
		}
		memset(page_address(pages[i]), value, PAGE_SIZE);
	}
	return pages;
}

/* ---- the fence of a move ---- */

static DEFINE_SPINLOCK(lab_fence_lock);

static const char *lab_fence_name(struct dma_fence *fence)
{
	return "lab_exporter";
}

static const struct dma_fence_ops lab_fence_ops = {
	.get_driver_name = lab_fence_name,
	.get_timeline_name = lab_fence_name,
};

static void lab_arrive(struct work_struct *work)
{
	struct lab_buffer *buffer = container_of(to_delayed_work(work), struct lab_buffer, arrival);
	size_t i;

	for (i = 0; i < buffer->npages; i++) {
		WARN_ONCE(memchr_inv(page_address(buffer->left[i]), STALE, PAGE_SIZE),
			  "an importer wrote to where the buffer was");
		copy_page(page_address(buffer->pages[i]), page_address(buffer->leaving[i]));
	}
	dma_fence_signal(buffer->fence);
	dma_fence_put(buffer->fence);
	buffer->fence = NULL;
	lab_free_pages(buffer->leaving, buffer->npages);
	lab_free_pages(buffer->left, buffer->npages);
	buffer->leaving = NULL;
	buffer->left = NULL;
}

/* ---- the operations ---- */

static int lab_pin(struct dma_buf_attachment *attach)
{
	struct lab_buffer *buffer = attach->dmabuf->priv;

	if (buffer->revoked)
		return -ENODEV;
	buffer->pins++;
	buffer->stats.pins++;
	return 0;
}

static void lab_unpin(struct dma_buf_attachment *attach)
{
	struct lab_buffer *buffer = attach->dmabuf->priv;

	buffer->pins--;
	buffer->stats.unpins++;
}

/* To the DMA API's debugging a page many times over looks like mappings that were forgotten. */
static unsigned long lab_attrs(const struct lab_buffer *buffer)
{
	return buffer->nown == buffer->npages ? 0 : DMA_ATTR_DEBUGGING_IGNORE_CACHELINES;
}

static struct sg_table *lab_map(struct dma_buf_attachment *attach,
				enum dma_data_direction direction)
{
	struct lab_buffer *buffer = attach->dmabuf->priv;
	struct sg_table *sgt;
	int err;

	if (buffer->revoked)
		return ERR_PTR(-ENODEV);
	if (buffer->refuse) {
		buffer->refuse--;
		return ERR_PTR(buffer->refuse_error);
	}
	sgt = kzalloc(sizeof(*sgt), GFP_KERNEL);
	if (!sgt)
		return ERR_PTR(-ENOMEM);
	err = sg_alloc_table_from_pages(sgt, buffer->pages, buffer->npages, 0,
					buffer->npages << PAGE_SHIFT, GFP_KERNEL);
	if (err)
		goto free;
	err = dma_map_sgtable(attach->dev, sgt, direction, lab_attrs(buffer));
	if (err)
		goto free_table;
	buffer->mapped++;
	buffer->stats.maps++;
	return sgt;

free_table:
	sg_free_table(sgt);
free:
	kfree(sgt);
	return ERR_PTR(err);
}

static void lab_unmap(struct dma_buf_attachment *attach, struct sg_table *sgt,
		      enum dma_data_direction direction)
{
	struct lab_buffer *buffer = attach->dmabuf->priv;

	dma_unmap_sgtable(attach->dev, sgt, direction, lab_attrs(buffer));
	sg_free_table(sgt);
	kfree(sgt);
	buffer->stats.unmaps++;
	if (!--buffer->mapped) {
		buffer->stats.unmap_us = ktime_us_delta(ktime_get(), buffer->told);
		wake_up_all(&buffer->unmapped);
	}
}

static int lab_vmap(struct dma_buf *dmabuf, struct iosys_map *map)
{
	struct lab_buffer *buffer = dmabuf->priv;
	void *address;

	dma_resv_assert_held(dmabuf->resv);
	if (buffer->revoked)
		return -ENODEV;
	/* vmap() maps no more pages than the machine has, repeated or not */
	address = vm_map_ram(buffer->pages, buffer->npages, NUMA_NO_NODE);
	if (!address)
		return -ENOMEM;
	iosys_map_set_vaddr(map, address);
	buffer->stats.vmaps++;
	return 0;
}

static void lab_vunmap(struct dma_buf *dmabuf, struct iosys_map *map)
{
	struct lab_buffer *buffer = dmabuf->priv;

	dma_resv_assert_held(dmabuf->resv);
	vm_unmap_ram(map->vaddr, buffer->npages);
	buffer->stats.vunmaps++;
}

static void lab_release(struct dma_buf *dmabuf)
{
	struct lab_buffer *buffer = dmabuf->priv;

	flush_delayed_work(&buffer->arrival);
	WARN_ON(buffer->mapped || buffer->pins);
	WARN_ON(buffer->stats.vmaps != buffer->stats.vunmaps);
	lab_free_pages(buffer->pages, buffer->nown);
	kfree(buffer);
}

static const struct dma_buf_ops lab_ops = {
	.pin = lab_pin,
	.unpin = lab_unpin,
	.map_dma_buf = lab_map,
	.unmap_dma_buf = lab_unmap,
	.vmap = lab_vmap,
	.vunmap = lab_vunmap,
	.release = lab_release,
};

/* ---- what is asked of it ---- */

static int lab_create(const struct lab_exporter_export *export, struct lab_buffer **ret_buffer)
{
	DEFINE_DMA_BUF_EXPORT_INFO(info);
	const u64 size = export->size;
	struct lab_buffer *buffer;
	size_t i;
	int err;

	if (!size || !PAGE_ALIGNED(size) || export->reserved ||
	    size > (export->period ? MAX_REPEATED : MAX_SIZE))
		return -EINVAL;
	buffer = kzalloc(sizeof(*buffer), GFP_KERNEL);
	if (!buffer)
		return -ENOMEM;
	buffer->npages = size >> PAGE_SHIFT;
	buffer->nown = min_t(size_t, export->period ?: buffer->npages, buffer->npages);
	buffer->pages = lab_alloc_pages(buffer->npages, buffer->nown, 0);
	if (!buffer->pages) {
		kfree(buffer);
		return -ENOMEM;
	}
	for (i = buffer->nown; i < buffer->npages; i++)
		buffer->pages[i] = buffer->pages[i % buffer->nown];
	mutex_init(&buffer->move_lock);
	init_waitqueue_head(&buffer->unmapped);
	INIT_DELAYED_WORK(&buffer->arrival, lab_arrive);
	info.ops = &lab_ops;
	info.size = size;
	info.flags = O_RDWR;
	info.priv = buffer;
	buffer->dmabuf = dma_buf_export(&info);
	if (IS_ERR(buffer->dmabuf)) {
		err = PTR_ERR(buffer->dmabuf);
		lab_free_pages(buffer->pages, buffer->nown);
		kfree(buffer);
		return err;
	}
	*ret_buffer = buffer;
	return 0;
}

static int lab_export(struct file *file, const struct lab_exporter_export *export)
{
	struct lab_buffer *buffer;
	int fd, err;

	if (file->private_data)
		return -EBUSY;
	err = lab_create(export, &buffer);
	if (err)
		return err;
	fd = dma_buf_fd(buffer->dmabuf, O_CLOEXEC);
	if (fd < 0) {
		dma_buf_put(buffer->dmabuf);
		return fd;
	}
	/* for this file; the descriptor has the other one */
	get_dma_buf(buffer->dmabuf);
	file->private_data = buffer;
	return fd;
}

static int lab_move(struct lab_buffer *buffer, u32 delay_ms)
{
	struct dma_resv *resv = buffer->dmabuf->resv;
	struct dma_fence *fence;
	struct page **fresh, **leaving;
	size_t i;
	int err;

	if (buffer->nown != buffer->npages)
		return -EOPNOTSUPP;
	mutex_lock(&buffer->move_lock);
	flush_delayed_work(&buffer->arrival);
	err = -ENOMEM;
	fresh = lab_alloc_pages(buffer->npages, buffer->npages, FRESH);
	leaving = lab_alloc_pages(buffer->npages, buffer->npages, 0);
	fence = kzalloc(sizeof(*fence), GFP_KERNEL);
	if (!fresh || !leaving || !fence)
		goto free;
	dma_fence_init(fence, &lab_fence_ops, &lab_fence_lock, dma_fence_context_alloc(1), 1);

	dma_resv_lock(resv, NULL);
	err = buffer->revoked ? -ENODEV : buffer->pins ? -EBUSY : dma_resv_reserve_fences(resv, 1);
	if (err) {
		dma_resv_unlock(resv);
		dma_fence_signal(fence);
		dma_fence_put(fence);
		fence = NULL;
		goto free;
	}
	buffer->told = ktime_get();
	dma_buf_invalidate_mappings(buffer->dmabuf);
	for (i = 0; i < buffer->npages; i++) {
		copy_page(page_address(leaving[i]), page_address(buffer->pages[i]));
		memset(page_address(buffer->pages[i]), STALE, PAGE_SIZE);
	}
	buffer->leaving = leaving;
	buffer->left = buffer->pages;
	buffer->pages = fresh;
	buffer->fence = dma_fence_get(fence);
	buffer->stats.moves++;
	dma_resv_add_fence(resv, fence, DMA_RESV_USAGE_KERNEL);
	schedule_delayed_work(&buffer->arrival, msecs_to_jiffies(delay_ms));
	dma_resv_unlock(resv);
	dma_fence_put(fence);
	mutex_unlock(&buffer->move_lock);
	return 0;

free:
	kfree(fence);
	lab_free_pages(fresh, buffer->npages);
	lab_free_pages(leaving, buffer->npages);
	mutex_unlock(&buffer->move_lock);
	return err;
}

static int lab_revoke(struct lab_buffer *buffer)
{
	struct dma_resv *resv = buffer->dmabuf->resv;

	dma_resv_lock(resv, NULL);
	buffer->revoked = true;
	buffer->told = ktime_get();
	dma_buf_invalidate_mappings(buffer->dmabuf);
	dma_resv_unlock(resv);
	dma_resv_wait_timeout(resv, DMA_RESV_USAGE_BOOKKEEP, false, 5 * HZ);
	return wait_event_timeout(buffer->unmapped, !READ_ONCE(buffer->mapped), 5 * HZ)
		       ? 0
		       : -ETIMEDOUT;
}

static long lab_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	struct lab_buffer *buffer = file->private_data;
	void __user *user = (void __user *)arg;
	struct lab_exporter_refuse refuse;
	struct lab_exporter_stats stats;
	struct lab_exporter_export export;
	struct lab_exporter_move move;

	if (cmd == LAB_EXPORTER_EXPORT)
		return copy_from_user(&export, user, sizeof(export)) ? -EFAULT
								     : lab_export(file, &export);
	if (!buffer)
		return -ENXIO;

	switch (cmd) {
	case LAB_EXPORTER_MOVE:
		if (copy_from_user(&move, user, sizeof(move)))
			return -EFAULT;
		return lab_move(buffer, move.delay_ms);
	case LAB_EXPORTER_REVOKE:
		return lab_revoke(buffer);
	case LAB_EXPORTER_REFUSE:
		if (copy_from_user(&refuse, user, sizeof(refuse)))
			return -EFAULT;
		if (refuse.error >= 0 || refuse.error < -MAX_ERRNO)
			return -EINVAL;
		dma_resv_lock(buffer->dmabuf->resv, NULL);
		buffer->refuse = refuse.count;
		buffer->refuse_error = refuse.error;
		dma_resv_unlock(buffer->dmabuf->resv);
		return 0;
	case LAB_EXPORTER_STATS:
		dma_resv_lock(buffer->dmabuf->resv, NULL);
		stats = buffer->stats;
		dma_resv_unlock(buffer->dmabuf->resv);
		return copy_to_user(user, &stats, sizeof(stats)) ? -EFAULT : 0;
	default:
		return -ENOTTY;
	}
}

/* The CPU's own way to the bytes, after whatever moves them. */
static ssize_t lab_access(struct file *file, char __user *user, size_t length, loff_t *at,
			  bool write)
{
	struct lab_buffer *buffer = file->private_data;
	size_t done = 0;

	if (!buffer)
		return -ENXIO;
	if (*at < 0 || *at > buffer->npages << PAGE_SHIFT)
		return -EINVAL;
	length = min_t(size_t, length, (buffer->npages << PAGE_SHIFT) - *at);
	mutex_lock(&buffer->move_lock);
	flush_delayed_work(&buffer->arrival);
	while (done < length) {
		size_t offset = offset_in_page(*at),
		       n = min_t(size_t, length - done, PAGE_SIZE - offset);
		u8 *bytes = page_address(buffer->pages[*at >> PAGE_SHIFT]) + offset;

		if (write ? copy_from_user(bytes, user + done, n)
			  : copy_to_user(user + done, bytes, n))
			break;
		done += n;
		*at += n;
	}
	mutex_unlock(&buffer->move_lock);
	return done == length ? done : -EFAULT;
}

static ssize_t lab_read(struct file *file, char __user *user, size_t length, loff_t *at)
{
	return lab_access(file, user, length, at, false);
}

static ssize_t lab_write(struct file *file, const char __user *user, size_t length, loff_t *at)
{
	return lab_access(file, (char __user *)user, length, at, true);
}

static int lab_open(struct inode *inode, struct file *file)
{
	/* of the misc device, which is not a buffer */
	file->private_data = NULL;
	return 0;
}

static int lab_close(struct inode *inode, struct file *file)
{
	struct lab_buffer *buffer = file->private_data;

	if (buffer)
		dma_buf_put(buffer->dmabuf);
	return 0;
}

static const struct file_operations lab_fops = {
	.owner = THIS_MODULE,
	.open = lab_open,
	.release = lab_close,
	.read = lab_read,
	.write = lab_write,
	.llseek = default_llseek,
	.unlocked_ioctl = lab_ioctl,
};

static struct miscdevice lab_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "lab_exporter",
	.fops = &lab_fops,
	.mode = 0600,
};

/* ---- what the lab must notice: mistakes that the kernel itself tells of ---- */

static char *control;
module_param(control, charp, 0400);
MODULE_PARM_DESC(control, "make this mistake, and nothing else");

/* A buffer without operations: any kernel warns. */
static void lab_export_nothing(void)
{
	static const struct dma_buf_ops nothing;
	DEFINE_DMA_BUF_EXPORT_INFO(info);

	info.ops = &nothing;
	info.size = PAGE_SIZE;
	info.priv = &info;
	WARN_ON(!IS_ERR(dma_buf_export(&info)));
}

static struct lab_buffer *lab_control_buffer(void)
{
	const struct lab_exporter_export export = {.size = PAGE_SIZE};
	struct lab_buffer *buffer = NULL;

	lab_create(&export, &buffer);
	return buffer;
}

/* A mapping without the reservation: told by a kernel that knows which locks are held. */
static void lab_map_unlocked(void)
{
	struct lab_buffer *buffer = lab_control_buffer();
	struct iosys_map map;

	if (!buffer)
		return;
	if (!dma_buf_vmap(buffer->dmabuf, &map))
		dma_buf_vunmap(buffer->dmabuf, &map);
	dma_buf_put(buffer->dmabuf);
}

/* Two locks, once this way round and once that way. */
static void lab_lock_both_ways(void)
{
	struct lab_buffer *buffer = lab_control_buffer();

	if (!buffer)
		return;
	dma_resv_lock(buffer->dmabuf->resv, NULL);
	mutex_lock(&buffer->move_lock);
	mutex_unlock(&buffer->move_lock);
	dma_resv_unlock(buffer->dmabuf->resv);
	mutex_lock(&buffer->move_lock);
	dma_resv_lock(buffer->dmabuf->resv, NULL);
	dma_resv_unlock(buffer->dmabuf->resv);
	mutex_unlock(&buffer->move_lock);
	dma_buf_put(buffer->dmabuf);
}

/* One byte of what is free already. */
static void lab_read_freed(void)
{
	struct lab_buffer *buffer = kzalloc(sizeof(*buffer), GFP_KERNEL);

	if (!buffer)
		return;
	kfree(buffer);
	READ_ONCE(buffer->npages);
}

static const struct {
	const char *name;
	void (*make)(void);
} lab_controls[] = {
	{"warning", lab_export_nothing},
	{"unlocked", lab_map_unlocked},
	{"order", lab_lock_both_ways},
	{"freed", lab_read_freed},
};

static int __init lab_init(void)
{
	size_t i;

	if (!control)
		return misc_register(&lab_device);
	for (i = 0; i < ARRAY_SIZE(lab_controls); i++) {
		if (!strcmp(control, lab_controls[i].name)) {
			lab_controls[i].make();
			return 0;
		}
	}
	return -EINVAL;
}
module_init(lab_init);

static void __exit lab_exit(void)
{
	if (!control)
		misc_deregister(&lab_device);
}
module_exit(lab_exit);

MODULE_DESCRIPTION("An exporter of dma-bufs for tests");
MODULE_LICENSE("GPL");
MODULE_IMPORT_NS("DMA_BUF");
