/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What a host in plain C sees of the built plugins: the symbol, the size, the version, the name,
 * and that capability bits and slots tell the same story. Arguments: folders of plugins.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include <peerbuf/exporter.h>
#include <peerbuf/importer.h>

static unsigned failures;

static void fail(const char *path, const char *what, const char *detail)
{
	failures++;
	printf("%s: %s%s\n", path, what, detail);
}

struct rule {
	uint32_t bit;
	const char *name;
	int first, second; /* whether the slot is there; second is as first where there is one */
};

static void check_rules(const char *path, uint32_t capabilities, const struct rule *rules, size_t n)
{
	uint32_t known = 0;
	size_t i;

	for (i = 0; i < n; i++) {
		const int bit = (capabilities & rules[i].bit) != 0;

		known |= rules[i].bit;
		if (bit && !(rules[i].first && rules[i].second))
			fail(path, "a capability without all of its slots: ", rules[i].name);
		if (!bit && (rules[i].first || rules[i].second))
			fail(path, "a slot without its capability: ", rules[i].name);
	}
	if (capabilities & ~known)
		fail(path, "a capability bit that this ABI does not have", "");
}

#define RULE(bit, a, b)                                                                            \
	{                                                                                          \
		bit, #bit, p->a != NULL, p->b != NULL                                              \
	}

static void check_exporter(const char *path, const struct peerbuf_exporter_plugin *p)
{
	const struct rule rules[] = {
		RULE(PEERBUF_EXPORTER_CAP_ALLOC, alloc, free),
		RULE(PEERBUF_EXPORTER_CAP_GET, get, put),
		RULE(PEERBUF_EXPORTER_CAP_PIN, pin, unpin),
		RULE(PEERBUF_EXPORTER_CAP_MAP, map, unmap),
		RULE(PEERBUF_EXPORTER_CAP_FD, export_fd, release_fd),
		RULE(PEERBUF_EXPORTER_CAP_INVALIDATE, invalidate_done, invalidate_done),
		RULE(PEERBUF_EXPORTER_CAP_EVENTS, event_fd, progress),
		RULE(PEERBUF_EXPORTER_CAP_OPS, open_ops, open_ops),
	};

	if (p->struct_size != sizeof(*p))
		fail(path, "struct_size is not that of the header it was built with", "");
	if (!p->open || !p->close || !p->offer || !p->attach || !p->detach)
		fail(path, "open, close, offer, attach or detach is missing", "");
	check_rules(path, p->capabilities, rules, sizeof(rules) / sizeof(rules[0]));
}

static void check_importer(const char *path, const struct peerbuf_importer_plugin *p)
{
	const struct rule rules[] = {
		RULE(PEERBUF_IMPORTER_CAP_INVALIDATE, invalidate, invalidate),
		RULE(PEERBUF_IMPORTER_CAP_RESUME, resume, resume),
		RULE(PEERBUF_IMPORTER_CAP_EVENTS, event_fd, progress),
		RULE(PEERBUF_IMPORTER_CAP_OPS, open_ops, open_ops),
		RULE(PEERBUF_IMPORTER_CAP_GATE, gate, gate),
	};

	if (p->struct_size != sizeof(*p))
		fail(path, "struct_size is not that of the header it was built with", "");
	if (!p->open || !p->close || !p->offer || !p->reg || !p->dereg)
		fail(path, "open, close, offer, reg or dereg is missing", "");
	check_rules(path, p->capabilities, rules, sizeof(rules) / sizeof(rules[0]));
}

static void check_name(const char *path, const char *from_file, const char *name,
		       const char *description)
{
	size_t n;

	if (!name || !description) {
		fail(path, "no name or no description", "");
		return;
	}
	n = strlen(name);
	if (strncmp(from_file, name, n) != 0 || strcmp(from_file + n, ".so") != 0)
		fail(path, "the name differs from the file's: ", name);
	if (!description[0] || strchr(description, '\n'))
		fail(path, "the description is not one line", "");
}

static void check_plugin(const char *path, const char *file)
{
	const int exporter = strncmp(file, "peerbuf-exporter-", 17) == 0;
	const char *symbol = exporter ? "peerbuf_exporter_v1" : "peerbuf_importer_v1";
	const char *name, *description;
	uint32_t version;
	const void *table;
	void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);

	if (!handle) {
		fail(path, "dlopen: ", dlerror());
		return;
	}
	table = dlsym(handle, symbol);
	if (!table) {
		fail(path, "no symbol ", symbol);
		return;
	}
	if (exporter) {
		const struct peerbuf_exporter_plugin *p = table;

		version = p->abi_version;
		name = p->name;
		description = p->description;
		check_exporter(path, p);
	} else {
		const struct peerbuf_importer_plugin *p = table;

		version = p->abi_version;
		name = p->name;
		description = p->description;
		check_importer(path, p);
	}
	if (version != PEERBUF_ABI_VERSION)
		fail(path, "another abi_version", "");
	check_name(path, file + 17, name, description);
	printf("%s: %s\n", file, description ? description : "?");
}

int main(int argc, char **argv)
{
	unsigned seen = 0;
	int i;

	for (i = 1; i < argc; i++) {
		DIR *dir = opendir(argv[i]);
		const struct dirent *entry;

		if (!dir) {
			fail(argv[i], "cannot be listed", "");
			continue;
		}
		while ((entry = readdir(dir)) != NULL) {
			const char *file = entry->d_name;
			const size_t n = strlen(file);
			char path[4096];

			if (n < 20 || strcmp(file + n - 3, ".so") != 0 ||
			    (strncmp(file, "peerbuf-exporter-", 17) != 0 &&
			     strncmp(file, "peerbuf-importer-", 17) != 0))
				continue;
			seen++;
			snprintf(path, sizeof(path), "%s/%s", argv[i], file);
			check_plugin(path, file);
		}
		closedir(dir);
	}
	if (!seen)
		fail("no plugin", " was found in the folders given", "");
	return failures ? 1 : 0;
}
