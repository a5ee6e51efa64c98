/* The records of a TensorBoard event file, as bytes.
 *
 * A record is a length (u64), the masked CRC-32C of these eight bytes, an event, and the masked
 * CRC-32C of the event, all little-endian. An event is a protocol-buffer message; three kinds of it
 * are made here. */
#ifndef TT_LAUNCH_EVENT_RECORD_H
#define TT_LAUNCH_EVENT_RECORD_H

#include <stddef.h>
#include <stdint.h>

enum {
    TT_EVENT_TAG = 256,    /* bytes of a tag that are used at most */
    TT_EVENT_RECORD = 384, /* room for any record made here */
};

/* CRC-32C (Castagnoli), and its form inside a record. */
uint32_t tt_event_crc32c(const void *bytes, size_t size);
uint32_t tt_event_masked_crc32c(const void *bytes, size_t size);

/* Each fills `record` and returns its length. `wall_time`: seconds since 1970. */

/* The first event of a file. */
size_t tt_event_version(double wall_time, uint8_t record[TT_EVENT_RECORD]);
/* Tells a TensorBoard that has read an earlier file of the same folder to forget what it knows of
 * `step` and later steps. */
size_t tt_event_restart(double wall_time, int64_t step, uint8_t record[TT_EVENT_RECORD]);
size_t tt_event_scalar(double wall_time, int64_t step, const char *tag, float value,
                       uint8_t record[TT_EVENT_RECORD]);

#endif
