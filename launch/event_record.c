#include "launch/event_record.h"

#include <stdbool.h>
#include <string.h>

/* Field numbers and wire types of tensorflow.Event, Summary, Summary.Value and SessionLog. */
enum {
    VARINT = 0,
    FIXED_64 = 1,
    BYTES = 2,
    FIXED_32 = 5,

    EVENT_WALL_TIME = 1,
    EVENT_STEP = 2,
    EVENT_FILE_VERSION = 3,
    EVENT_SUMMARY = 5,
    EVENT_SESSION_LOG = 7,
    SUMMARY_VALUE = 1,
    VALUE_TAG = 1,
    VALUE_SIMPLE = 2,
    SESSION_STATUS = 1,
    SESSION_START = 1,
};

enum { HEADER = 12, FOOTER = 4 };

typedef struct {
    uint8_t bytes[TT_EVENT_RECORD];
    size_t size;
} message;

uint32_t tt_event_crc32c(const void *bytes, size_t size)
{
    static uint32_t table[256];
    static bool made;
    for (uint32_t i = 0; !made && i < 256; i++) {
        uint32_t entry = i;
        for (int bit = 0; bit < 8; bit++) {
            entry = (entry >> 1) ^ (0x82F63B78u & (0u - (entry & 1u)));
        }
        table[i] = entry;
    }
    made = true;
    uint32_t crc = 0xFFFFFFFFu;
    for (size_t i = 0; i < size; i++) {
        crc = (crc >> 8) ^ table[(crc ^ ((const uint8_t *)bytes)[i]) & 255u];
    }
    return ~crc;
}

uint32_t tt_event_masked_crc32c(const void *bytes, size_t size)
{
    uint32_t crc = tt_event_crc32c(bytes, size);
    return ((crc >> 15) | (crc << 17)) + 0xA282EAD8u;
}

static void put_fixed(uint8_t *to, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++) {
        to[i] = (uint8_t)(value >> (8 * i));
    }
}

static void add_fixed(message *to, uint64_t value, int bytes)
{
    put_fixed(to->bytes + to->size, value, bytes);
    to->size += (size_t)bytes;
}

static void add_varint(message *to, uint64_t value)
{
    for (; value > 127; value >>= 7) {
        to->bytes[to->size++] = (uint8_t)(value | 128u);
    }
    to->bytes[to->size++] = (uint8_t)value;
}

static void add_key(message *to, int field, int wire_type)
{
    add_varint(to, (uint64_t)(field << 3 | wire_type));
}

static void add_bytes(message *to, int field, const void *bytes, size_t size)
{
    add_key(to, field, BYTES);
    add_varint(to, size);
    memcpy(to->bytes + to->size, bytes, size);
    to->size += size;
}

static message begin_event(double wall_time, int64_t step)
{
    message event = {.size = 0};
    uint64_t bits;
    memcpy(&bits, &wall_time, sizeof bits);
    add_key(&event, EVENT_WALL_TIME, FIXED_64);
    add_fixed(&event, bits, 8);
    if (step != 0) {
        add_key(&event, EVENT_STEP, VARINT);
        add_varint(&event, (uint64_t)step);
    }
    return event;
}

static size_t make_record(const message *event, uint8_t *record)
{
    put_fixed(record, event->size, 8);
    put_fixed(record + 8, tt_event_masked_crc32c(record, 8), 4);
    memcpy(record + HEADER, event->bytes, event->size);
    put_fixed(record + HEADER + event->size, tt_event_masked_crc32c(event->bytes, event->size), 4);
    return HEADER + event->size + FOOTER;
}

size_t tt_event_version(double wall_time, uint8_t record[TT_EVENT_RECORD])
{
    static const char version[] = "brain.Event:2";
    message event = begin_event(wall_time, 0);
    add_bytes(&event, EVENT_FILE_VERSION, version, sizeof version - 1);
    return make_record(&event, record);
}

size_t tt_event_restart(double wall_time, int64_t step, uint8_t record[TT_EVENT_RECORD])
{
    message event = begin_event(wall_time, step), session = {.size = 0};
    add_key(&session, SESSION_STATUS, VARINT);
    add_varint(&session, SESSION_START);
    add_bytes(&event, EVENT_SESSION_LOG, session.bytes, session.size);
    return make_record(&event, record);
}

size_t tt_event_scalar(double wall_time, int64_t step, const char *tag, float value,
                       uint8_t record[TT_EVENT_RECORD])
{
    message event = begin_event(wall_time, step), scalar = {.size = 0}, summary = {.size = 0};
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    add_bytes(&scalar, VALUE_TAG, tag, strnlen(tag, TT_EVENT_TAG));
    add_key(&scalar, VALUE_SIMPLE, FIXED_32);
    add_fixed(&scalar, bits, 4);
    add_bytes(&summary, SUMMARY_VALUE, scalar.bytes, scalar.size);
    add_bytes(&event, EVENT_SUMMARY, summary.bytes, summary.size);
    return make_record(&event, record);
}
