/* Shards and tokenizers. */
#include "launch/inspect_report.h"

#include "data/shard.h"
#include "data/tokenizer.h"

#include <inttypes.h>
#include <sys/stat.h>

static json_t *hash_json(uint64_t hash)
{
    char text[20];
    snprintf(text, sizeof text, "%016" PRIx64, hash);
    return json_string(text);
}

static json_int_t file_size(const char *path)
{
    struct stat status;
    return stat(path, &status) == 0 ? (json_int_t)status.st_size : 0;
}

static json_t *special_json(const tt_special_ids *special)
{
    return json_pack("[{s:i, s:i, s:i, s:i, s:i}]", "pad", special->pad, "unk", special->unknown,
                     "cls", special->cls, "sep", special->sep, "mask", special->mask);
}

tt_status tt_inspect_shard(const char *path, json_t **report, tt_error *error)
{
    tt_shard_info info;
    TT_TRY(tt_shard_inspect(path, &info, error));
    bool own = info.version > 0;
    *report = json_pack("{s:s, s:s, s:s, s:i, s:s, s:I, s:i, s:i, s:I}", "kind", "shard", "path",
                        path, "layout", own ? "ttrain" : "NVIDIA", "version", info.version,
                        "masking", info.masking == TT_MASKING_STATIC ? "static" : "dynamic", "rows",
                        (json_int_t)info.rows, "sequence_length", info.sequence_length,
                        "max_predictions", info.max_predictions, "bytes", file_size(path));
    if (own) {
        json_object_set_new(*report, "vocabulary_size", json_integer(info.vocabulary_size));
        json_object_set_new(*report, "tokenizer_hash", hash_json(info.tokenizer_hash));
        json_object_set_new(*report, "source", json_string(info.source));
        json_object_set_new(*report, "seed", json_integer((json_int_t)info.seed));
        json_object_set_new(*report, "special_ids", special_json(&info.special));
    }
    return *report != NULL ? TT_OK
                           : tt_error_set(error, TT_OUT_OF_MEMORY, "%s: out of memory", path);
}

tt_status tt_inspect_tokenizer(const char *path, json_t **report, tt_error *error)
{
    tt_tokenizer *tokenizer;
    TT_TRY(tt_tokenizer_open(path, &tokenizer, error));
    tt_special_ids special = tt_tokenizer_special(tokenizer);
    *report = json_pack("{s:s, s:s, s:i, s:o, s:I, s:o}", "kind", "tokenizer", "path", path,
                        "vocabulary_size", tt_tokenizer_vocabulary_size(tokenizer), "hash",
                        hash_json(tt_tokenizer_hash(tokenizer)), "bytes", file_size(path),
                        "special_ids", special_json(&special));
    tt_tokenizer_close(&tokenizer);
    return *report != NULL ? TT_OK
                           : tt_error_set(error, TT_OUT_OF_MEMORY, "%s: out of memory", path);
}
