// SPDX-License-Identifier: Apache-2.0
#include "interpose/bypass.h"

#include <stdio.h>
#include <string.h>

#include "hooks/symbols.h"
#include "interpose/objects.h"

namespace gcr {
namespace interpose {
namespace {

struct Links {
    const Object& object;
    const ElfW(Sym) * symbols;
    const char* strings;
};

bool needs_driver(const Object& object, const char* strings) {
    for (const ElfW(Dyn)* at = object.dynamic; at->d_tag != DT_NULL; ++at) {
        if (at->d_tag != DT_NEEDED) continue;
        for (const hooks::Library& library : hooks::libraries)
            if (is_name_of(library, strings + at->d_un.d_val)) return true;
    }
    return false;
}

bool is_hooked(const char* name) {
    hooks::Index index = hooks::find_symbol(name);
    return index != hooks::kNoSymbol && hooks::wrappers[index] != nullptr;
}

bool goes_past_us(const Links& links, const ElfW(Rela) & link) {
    uint32_t index = static_cast<uint32_t>(ELF64_R_SYM(link.r_info));
    if (index == STN_UNDEF || !is_hooked(links.strings + links.symbols[index].st_name)) return false;
    return in_remembered_driver(*reinterpret_cast<void**>(links.object.base + link.r_offset));
}

bool any_goes_past_us(const Links& links, ElfW(Sxword) table, ElfW(Sxword) size) {
    auto* link = reinterpret_cast<const ElfW(Rela)*>(entry(links.object, table));
    size_t count = link != nullptr ? number(links.object, size) / sizeof *link : 0;
    for (size_t i = 0; i < count; i++)
        if (goes_past_us(links, link[i])) return true;
    return false;
}

struct File {
    char* name;
    size_t size;
};

bool is_bypass(const Object& object, void* context) {
    auto* symbols = reinterpret_cast<const ElfW(Sym)*>(entry(object, DT_SYMTAB));
    auto* strings = reinterpret_cast<const char*>(entry(object, DT_STRTAB));
    if (symbols == nullptr || strings == nullptr || is_driver(object) || !needs_driver(object, strings)) return false;
    Links links{object, symbols, strings};
    if (!any_goes_past_us(links, DT_JMPREL, DT_PLTRELSZ) && !any_goes_past_us(links, DT_RELA, DT_RELASZ)) return false;
    auto* file = static_cast<File*>(context);
    const char* slash = strrchr(object.name, '/');
    snprintf(file->name, file->size, "%s", slash != nullptr ? slash + 1 : object.name);
    return true;
}

}  // namespace

bool find_bypass(char* file, size_t size) {
    File found{file, size};
    return each_object(is_bypass, &found);
}

}  // namespace interpose
}  // namespace gcr
