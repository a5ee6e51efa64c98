#include "core/cuda/cuda_device.h"

#include <cstdlib>
#include <cstring>

/* Tables in device memory, found by their content. The copy in host memory is what the upload reads
 * and what a lookup compares, so neither depends on the caller's memory. */
typedef struct {
    uint64_t hash;
    size_t bytes;
    void *host;
    const void *device;
} constant_entry;

/* Tables are cut from blocks of this size at least, and are never released singly: a captured step
 * holds their addresses. */
enum { BLOCK_BYTES = 1 << 18, ALIGNMENT = 256 };

typedef struct constant_block {
    struct constant_block *next;
    char *memory;
    size_t used, bytes;
} constant_block;

struct tt_cuda_constants {
    constant_entry *entries; /* open addressing; capacity is a power of two */
    size_t count, capacity;
    constant_block *blocks; /* the newest first */
};

bool tt_cuda_constants_create(tt_device *device)
{
    tt_cuda(device)->constants =
        static_cast<tt_cuda_constants *>(calloc(1, sizeof(tt_cuda_constants)));
    return tt_cuda(device)->constants != nullptr;
}

void tt_cuda_constants_destroy(tt_device *device)
{
    tt_cuda_constants *constants = tt_cuda(device)->constants;
    if (constants == nullptr) {
        return;
    }
    for (size_t i = 0; i < constants->capacity; i++) {
        free(constants->entries[i].host);
    }
    free(constants->entries);
    while (constants->blocks != nullptr) {
        constant_block *block = constants->blocks;
        constants->blocks = block->next;
        device->release(device, block->memory);
        free(block);
    }
    free(constants);
    tt_cuda(device)->constants = nullptr;
}

/* FNV-1a over words: tables are small and differ in their addresses. */
static uint64_t hash_of(const void *host, size_t bytes)
{
    const unsigned char *byte = static_cast<const unsigned char *>(host);
    uint64_t hash = 0xcbf29ce484222325u ^ bytes;
    for (size_t i = 0; i < bytes; i += sizeof(uint64_t)) {
        uint64_t word = 0;
        memcpy(&word, byte + i, bytes - i < sizeof word ? bytes - i : sizeof word);
        hash = (hash ^ word) * 0x100000001b3u;
        hash ^= hash >> 29;
    }
    return hash;
}

/* The entry that holds this content, or the free one where it belongs. */
static constant_entry *find_entry(constant_entry *entries, size_t capacity, uint64_t hash,
                                  const void *host, size_t bytes)
{
    for (size_t i = hash & (capacity - 1);; i = (i + 1) & (capacity - 1)) {
        constant_entry *entry = &entries[i];
        if (entry->host == nullptr || (entry->hash == hash && entry->bytes == bytes &&
                                       memcmp(entry->host, host, bytes) == 0)) {
            return entry;
        }
    }
}

/* Room for one more entry, with at least half of them free. */
static bool grow_entries(tt_cuda_constants *constants)
{
    if (2 * (constants->count + 1) <= constants->capacity) {
        return true;
    }
    size_t capacity = constants->capacity > 0 ? 2 * constants->capacity : 64;
    constant_entry *entries =
        static_cast<constant_entry *>(calloc(capacity, sizeof(constant_entry)));
    if (entries == nullptr) {
        return false;
    }
    for (size_t i = 0; i < constants->capacity; i++) {
        const constant_entry *old = &constants->entries[i];
        if (old->host != nullptr) {
            *find_entry(entries, capacity, old->hash, old->host, old->bytes) = *old;
        }
    }
    free(constants->entries);
    constants->entries = entries;
    constants->capacity = capacity;
    return true;
}

static void *cut(tt_device *device, size_t bytes)
{
    tt_cuda_constants *constants = tt_cuda(device)->constants;
    size_t rounded = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    constant_block *block = constants->blocks;
    if (block == nullptr || block->bytes - block->used < rounded) {
        block = static_cast<constant_block *>(calloc(1, sizeof(constant_block)));
        if (block == nullptr) {
            return nullptr;
        }
        block->bytes = rounded > size_t{BLOCK_BYTES} ? rounded : size_t{BLOCK_BYTES};
        block->memory = static_cast<char *>(device->allocate(device, block->bytes));
        if (block->memory == nullptr) {
            free(block);
            return nullptr;
        }
        block->next = constants->blocks;
        constants->blocks = block;
    }
    void *memory = block->memory + block->used;
    block->used += rounded;
    return memory;
}

static const void *add_constant(tt_device *device, uint64_t hash, const void *host, size_t bytes)
{
    tt_cuda_constants *constants = tt_cuda(device)->constants;
    void *copy = malloc(bytes);
    void *memory = copy != nullptr && grow_entries(constants) ? cut(device, bytes) : nullptr;
    if (memory == nullptr) {
        free(copy);
        tt_cuda_refuse(device, "no memory for a table of %zu bytes", bytes);
        return nullptr;
    }
    memcpy(copy, host, bytes);
    constant_entry *entry = find_entry(constants->entries, constants->capacity, hash, copy, bytes);
    *entry = {hash, bytes, copy, memory};
    constants->count++;
    tt_cuda_good(
        device,
        cudaMemcpyAsync(memory, copy, bytes, cudaMemcpyHostToDevice, tt_cuda(device)->stream),
        "copying a table of operands");
    return memory;
}

const void *tt_cuda_constant(tt_device *device, const void *host, size_t bytes)
{
    tt_cuda_state *state = tt_cuda(device);
    if (state->failed) {
        return nullptr;
    }
    uint64_t hash = hash_of(host, bytes);
    if (state->constants->capacity > 0) {
        const constant_entry *entry =
            find_entry(state->constants->entries, state->constants->capacity, hash, host, bytes);
        if (entry->host != nullptr) {
            return entry->device;
        }
    }
    if (state->capturing) {
        tt_cuda_refuse(device,
                       "a step being captured uses a table of %zu bytes that the step before it, "
                       "which was not captured, did not",
                       bytes);
        return nullptr;
    }
    return add_constant(device, hash, host, bytes);
}
