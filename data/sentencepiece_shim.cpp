#include "data/sentencepiece_shim.h"

#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

/* Exported by the library, but in none of its installed headers. */
namespace sentencepiece::logging
{
void SetMinLogLevel(int level);
}

struct tt_sentencepiece {
    sentencepiece::SentencePieceProcessor processor;
};

namespace
{

/* Above the library's highest level, so that what it has to say comes back as a status only. */
constexpr int silent_level = 4;

/* The library's messages read "Internal: file.cc(12) [condition] reason": only the reason helps. */
void set_message(char *message, size_t size, std::string_view text)
{
    const size_t bracket = text.find(") [");
    const size_t reason = text.rfind("] ");
    if (bracket != std::string_view::npos && reason != std::string_view::npos && reason > bracket &&
        reason + 2 < text.size()) {
        text.remove_prefix(reason + 2);
    }
    while (!text.empty() && (text.back() == '\n' || text.back() == ' ' || text.back() == '.')) {
        text.remove_suffix(1);
    }
    std::snprintf(message, size, "%.*s", static_cast<int>(text.size()), text.data());
    for (char *byte = message; *byte != '\0'; byte++) {
        *byte = *byte == '\n' ? ' ' : *byte;
    }
}

/* Runs `work` and turns an exception into a message and a failure. */
template <typename Result, typename Work>
Result guarded(char *message, size_t size, Result failure, Work work) noexcept
{
    try {
        return work();
    } catch (const std::exception &exception) {
        std::snprintf(message, size, "%s", exception.what());
    } catch (...) {
        std::snprintf(message, size, "unknown failure in SentencePiece");
    }
    return failure;
}

class line_iterator final : public sentencepiece::SentenceIterator
{
  public:
    line_iterator(tt_sentencepiece_next next, void *user) : next_(next), user_(user)
    {
        advance();
    }
    bool done() const override
    {
        return done_;
    }
    void Next() override
    {
        advance();
    }
    const std::string &value() const override
    {
        return line_;
    }
    sentencepiece::util::Status status() const override
    {
        return {};
    }

  private:
    void advance()
    {
        size_t length = 0;
        const char *line = next_(user_, &length);
        done_ = line == nullptr;
        if (!done_) {
            line_.assign(line, length);
        }
    }

    tt_sentencepiece_next next_;
    void *user_;
    std::string line_;
    bool done_ = false;
};

} // namespace

void *tt_sentencepiece_train(const tt_sentencepiece_setting *settings, size_t setting_count,
                             tt_sentencepiece_next next, void *user, size_t *size, char *message,
                             size_t message_size)
{
    return guarded<void *>(message, message_size, nullptr, [&]() -> void * {
        sentencepiece::logging::SetMinLogLevel(silent_level);
        std::unordered_map<std::string, std::string> arguments;
        for (size_t i = 0; i < setting_count; i++) {
            arguments[settings[i].key] = settings[i].value;
        }
        arguments["minloglevel"] = std::to_string(silent_level);
        line_iterator lines(next, user);
        std::string model;
        const auto status = sentencepiece::SentencePieceTrainer::Train(arguments, &lines, &model);
        if (!status.ok()) {
            set_message(message, message_size, status.ToString());
            return nullptr;
        }
        void *bytes = std::malloc(model.size());
        if (bytes == nullptr) {
            std::snprintf(message, message_size, "out of memory");
            return nullptr;
        }
        std::copy(model.begin(), model.end(), static_cast<char *>(bytes));
        *size = model.size();
        return bytes;
    });
}

tt_sentencepiece *tt_sentencepiece_load(const void *bytes, size_t size, char *message,
                                        size_t message_size)
{
    tt_sentencepiece *model = nullptr;
    const bool loaded = guarded(message, message_size, false, [&]() {
        sentencepiece::logging::SetMinLogLevel(silent_level);
        model = new tt_sentencepiece;
        const auto status = model->processor.LoadFromSerializedProto(
            std::string_view(static_cast<const char *>(bytes), size));
        if (!status.ok()) {
            set_message(message, message_size, status.ToString());
        }
        return status.ok();
    });
    if (!loaded) {
        delete model;
        return nullptr;
    }
    return model;
}

void tt_sentencepiece_free(tt_sentencepiece *model)
{
    delete model;
}

int tt_sentencepiece_size(const tt_sentencepiece *model)
{
    return model->processor.GetPieceSize();
}

const char *tt_sentencepiece_piece(const tt_sentencepiece *model, int id)
{
    return model->processor.IdToPiece(id).c_str();
}

int tt_sentencepiece_find(const tt_sentencepiece *model, const char *piece)
{
    const int id = model->processor.PieceToId(piece);
    return model->processor.IdToPiece(id) == piece ? id : -1;
}

bool tt_sentencepiece_is_control(const tt_sentencepiece *model, int id)
{
    return model->processor.IsControl(id) || model->processor.IsUnused(id);
}

bool tt_sentencepiece_is_unknown(const tt_sentencepiece *model, int id)
{
    return model->processor.IsUnknown(id);
}

bool tt_sentencepiece_encode(const tt_sentencepiece *model, const char *text, size_t length,
                             tt_sentencepiece_found piece, void *user, char *message,
                             size_t message_size)
{
    return guarded(message, message_size, false, [&]() {
        sentencepiece::ImmutableSentencePieceText encoded;
        const auto status =
            model->processor.Encode(std::string_view(text, length), encoded.mutable_proto());
        if (!status.ok()) {
            set_message(message, message_size, status.ToString());
            return false;
        }
        const size_t count = encoded.pieces_size();
        for (size_t i = 0; i < count; i++) {
            const auto found = encoded.pieces(static_cast<int>(i));
            piece(user, static_cast<int32_t>(found.id()), found.begin(), found.end());
        }
        return true;
    });
}

char *tt_sentencepiece_decode(const tt_sentencepiece *model, const int32_t *ids, size_t count,
                              char *message, size_t message_size)
{
    return guarded<char *>(message, message_size, nullptr, [&]() -> char * {
        std::string text;
        const auto status = model->processor.Decode(std::vector<int>(ids, ids + count), &text);
        if (!status.ok()) {
            set_message(message, message_size, status.ToString());
            return nullptr;
        }
        char *copy = static_cast<char *>(std::malloc(text.size() + 1));
        if (copy == nullptr) {
            std::snprintf(message, message_size, "out of memory");
            return nullptr;
        }
        std::memcpy(copy, text.c_str(), text.size() + 1);
        return copy;
    });
}
