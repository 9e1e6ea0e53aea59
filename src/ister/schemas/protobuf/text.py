"""`.proto` text to the descriptor that protobuf's own runtime builds messages from.

The runtime has no compiler. `protoc` comes as a program of 20 MB in a package made for builds;
the parser that PyPI offers in pure Python takes 12 seconds for a MiB, prints errors to stderr and
returns an empty file for a text it does not understand. The language is small: what concerns
messages and enums is read here, services and custom options are skipped, and the runtime checks
the result again. Not supported, with an error that says so: editions, groups, imports of anything
but `google/protobuf/`. A test compares the results with those of `protoc`.
"""

from typing import TYPE_CHECKING

from google.protobuf import descriptor_pb2

from ister.base.errors import BadSchemaError
from ister.schemas.bounds import NESTING_MAX, NODES_MAX, shortened
from ister.schemas.protobuf.tokens import Token, tokens_of, unquoted

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import (
        DescriptorProto,
        EnumDescriptorProto,
        FieldDescriptorProto,
        FileDescriptorProto,
    )

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "bool": _Field.TYPE_BOOL,
    "bytes": _Field.TYPE_BYTES,
    "double": _Field.TYPE_DOUBLE,
    "fixed32": _Field.TYPE_FIXED32,
    "fixed64": _Field.TYPE_FIXED64,
    "float": _Field.TYPE_FLOAT,
    "int32": _Field.TYPE_INT32,
    "int64": _Field.TYPE_INT64,
    "sfixed32": _Field.TYPE_SFIXED32,
    "sfixed64": _Field.TYPE_SFIXED64,
    "sint32": _Field.TYPE_SINT32,
    "sint64": _Field.TYPE_SINT64,
    "string": _Field.TYPE_STRING,
    "uint32": _Field.TYPE_UINT32,
    "uint64": _Field.TYPE_UINT64,
}
_LABELS = {
    "optional": _Field.LABEL_OPTIONAL,
    "required": _Field.LABEL_REQUIRED,
    "repeated": _Field.LABEL_REPEATED,
}
_FIELD_NUMBER_MAX = 2**29 - 1
_ENUM_NUMBER_MAX = 2**31 - 1


def parse_text(text: str, name: str) -> "FileDescriptorProto":
    """Return the descriptor of a file `name` with `text` in it. Raises `BadSchemaError`."""
    return _Parser(text).file(name)


class _Parser:
    """Reads the words of one text from left to right."""

    def __init__(self, text: str) -> None:
        self._tokens = tokens_of(text)
        self._next = 0
        self._is_proto3 = False
        self._statements = 0

    # Statements of a file.

    def file(self, name: str) -> "FileDescriptorProto":
        file = descriptor_pb2.FileDescriptorProto(name=name)
        if self._found("edition"):
            raise self._error('editions are not supported: use `syntax = "proto3"`')
        if self._found("syntax"):
            self._expect("=")
            syntax = self._string().decode(errors="replace")
            if syntax not in ("proto2", "proto3"):
                raise self._error(f"syntax {shortened(syntax)!r} is neither proto2 nor proto3")
            self._expect(";")
            self._is_proto3 = syntax == "proto3"
            if self._is_proto3:
                file.syntax = syntax
        while self._peek().kind != "end":
            self._file_statement(file)
        return file

    def _file_statement(self, file: "FileDescriptorProto") -> None:
        self._count()
        token = self._take()
        match token.text:
            case ";":
                pass
            case "import":
                kind = self._take().text if self._peek().text in ("public", "weak") else ""
                if kind == "public":
                    file.public_dependency.append(len(file.dependency))
                file.dependency.append(self._string().decode(errors="replace"))
                self._expect(";")
            case "package":
                file.package = self._full_name()
                self._expect(";")
            case "message":
                self._message(file.message_type.add(), 1)
            case "enum":
                self._enum(file.enum_type.add())
            case "option":
                self._skip_to(";")
            case "service" | "extend":
                self._skip_to("{")
                self._skip_block("}")
            case _:
                raise self._error("a statement of a file was expected", token)

    def _message(self, message: "DescriptorProto", depth: int) -> None:
        if depth > NESTING_MAX // 2:
            raise self._error(f"messages are nested deeper than {NESTING_MAX // 2} levels")
        message.name = self._name()
        self._expect("{")
        while not self._found("}"):
            self._message_statement(message, depth)
        # One of its own for each optional field, behind all others, as `protoc` makes them.
        taken = {oneof.name for oneof in message.oneof_decl} | {f.name for f in message.field}
        for field in message.field:
            if field.proto3_optional:
                field.oneof_index = len(message.oneof_decl)
                message.oneof_decl.add(name=_free_name(field.name, taken))

    def _message_statement(self, message: "DescriptorProto", depth: int) -> None:
        self._count()
        follows = self._tokens[self._next + 1].text if self._peek().kind != "end" else ""
        # As for `protoc`, these words at the start are never a type.
        match self._peek().text:
            case ";":
                self._take()
            case "message":
                self._take()
                self._message(message.nested_type.add(), depth + 1)
            case "enum":
                self._take()
                self._enum(message.enum_type.add())
            case "oneof":
                self._take()
                self._oneof(message)
            case "option":
                self._skip_to(";")
            case "extend":
                self._skip_to("{")
                self._skip_block("}")
            case "extensions":
                self._take()
                for start, end in self._ranges(_FIELD_NUMBER_MAX):
                    message.extension_range.add(start=start, end=end + 1)
                self._skip_to(";")
            case "reserved":
                self._take()
                self._reserved(message)
            case "map" if follows == "<":
                self._map_field(message)
            case _:
                self._field(message)

    # Fields.

    def _field(self, message: "DescriptorProto", oneof: int | None = None) -> None:
        field = message.field.add()
        label = None
        if oneof is None and self._peek().text in _LABELS:
            label = self._take().text
        if label == "required" and self._is_proto3:
            raise self._error("proto3 has no `required`")
        if oneof is None and label is None and not self._is_proto3:
            raise self._error("a field of proto2 is optional, required or repeated")
        field.label = _LABELS[label or "optional"]
        if self._peek().text == "group":
            raise self._error("groups are not supported: use a message")
        self._set_type(field, self._full_name())
        if oneof is not None:
            field.oneof_index = oneof
        elif label == "optional" and self._is_proto3:
            field.proto3_optional = True
        self._finish_field(field)

    def _finish_field(self, field: "FieldDescriptorProto") -> None:
        field.name = self._name()
        self._expect("=")
        field.number = self._number(1, _FIELD_NUMBER_MAX)
        if self._found("["):
            self._field_options(field)
        self._expect(";")

    def _set_type(self, field: "FieldDescriptorProto", name: str) -> None:
        if name in _SCALARS:
            field.type = _SCALARS[name]
        else:
            field.type_name = name  # A message or an enum: the runtime resolves it.

    def _field_options(self, field: "FieldDescriptorProto") -> None:
        while True:
            name = self._peek().text
            if name in ("packed", "json_name", "default", "deprecated") and (
                self._tokens[self._next + 1].text == "="
            ):
                self._take()
                self._expect("=")
                self._set_option(field, name)
            else:
                self._skip_value((",", "]"))
            if self._found("]"):
                return
            self._expect(",")

    def _set_option(self, field: "FieldDescriptorProto", name: str) -> None:
        token = self._peek()
        if name == "json_name":
            field.json_name = self._string().decode(errors="replace")
        elif name == "default":
            field.default_value = self._default(field)
        else:
            self._take()
            if token.text not in ("true", "false"):
                raise self._error(f"`{name}` is true or false", token)
            setattr(field.options, name, token.text == "true")

    def _default(self, field: "FieldDescriptorProto") -> str:
        if self._is_proto3:
            raise self._error("proto3 has no defaults")
        if self._peek().kind == "string":
            data = self._string()
            if field.type == _Field.TYPE_BYTES:
                return "".join(
                    chr(b) if 32 <= b < 127 and b not in b"\\'\"" else f"\\{b:03o}" for b in data
                )
            return data.decode(errors="replace")
        sign = "-" if self._found("-") else ""
        token = self._take()
        if token.kind not in ("number", "name"):
            raise self._error("a value was expected", token)
        if token.kind == "number" and token.text.isalnum() and "e" not in token.text.lower():
            return sign + str(self._integer(token))
        if token.kind == "number" and token.text.lower().startswith("0x"):
            return sign + str(self._integer(token))
        return sign + token.text

    def _map_field(self, message: "DescriptorProto") -> None:
        self._take()
        self._expect("<")
        key = self._full_name()
        self._expect(",")
        value = self._full_name()
        self._expect(">")
        field = message.field.add(label=_Field.LABEL_REPEATED)
        self._finish_field(field)
        words = [word for word in field.name.split("_") if word]
        entry = message.nested_type.add(
            name="".join(word[0].upper() + word[1:] for word in words) + "Entry"
        )
        entry.options.map_entry = True
        field.type = _Field.TYPE_MESSAGE
        field.type_name = entry.name
        for slot, (part, type_name) in enumerate((("key", key), ("value", value)), start=1):
            inner = entry.field.add(name=part, number=slot, label=_Field.LABEL_OPTIONAL)
            self._set_type(inner, type_name)

    def _oneof(self, message: "DescriptorProto") -> None:
        slot = len(message.oneof_decl)
        message.oneof_decl.add(name=self._name())
        self._expect("{")
        while not self._found("}"):
            self._count()
            if self._peek().text == "option":
                self._skip_to(";")
            elif not self._found(";"):
                self._field(message, slot)

    def _reserved(self, message: "DescriptorProto") -> None:
        if self._peek().kind == "string":
            message.reserved_name.extend(self._strings())
        else:
            for start, end in self._ranges(_FIELD_NUMBER_MAX):
                message.reserved_range.add(start=start, end=end + 1)
        self._expect(";")

    # Enums.

    def _enum(self, enum: "EnumDescriptorProto") -> None:
        enum.name = self._name()
        self._expect("{")
        while not self._found("}"):
            self._count()
            if self._found(";"):
                continue
            token = self._take()
            is_value = self._peek().text == "="
            if token.text == "option" and not is_value:
                self._enum_option(enum)
            elif token.text == "reserved" and not is_value:
                self._enum_reserved(enum)
            elif token.kind == "name" and self._found("="):
                value = enum.value.add(name=token.text)
                value.number = self._number(-_ENUM_NUMBER_MAX - 1, _ENUM_NUMBER_MAX)
                if self._found("["):
                    self._skip_block("]")
                self._expect(";")
            else:
                raise self._error("a value of an enum was expected", token)

    def _enum_option(self, enum: "EnumDescriptorProto") -> None:
        if self._peek().text == "allow_alias":
            self._take()
            self._expect("=")
            if self._found("true"):
                enum.options.allow_alias = True
        self._skip_to(";")

    def _enum_reserved(self, enum: "EnumDescriptorProto") -> None:
        if self._peek().kind == "string":
            enum.reserved_name.extend(self._strings())
        else:
            for start, end in self._ranges(_ENUM_NUMBER_MAX, -_ENUM_NUMBER_MAX - 1):
                enum.reserved_range.add(start=start, end=end)
        self._expect(";")

    # Words.

    def _ranges(self, largest: int, smallest: int = 1) -> list[tuple[int, int]]:
        """Read `2, 4 to 6, 9 to max` as pairs of first and last."""
        ranges = []
        while True:
            start = end = self._number(smallest, largest)
            if self._found("to"):
                end = largest if self._found("max") else self._number(start, largest)
            ranges.append((start, end))
            if not self._found(","):
                return ranges

    def _strings(self) -> list[str]:
        found = [self._string().decode(errors="replace")]
        while self._found(","):
            found.append(self._string().decode(errors="replace"))
        return found

    def _string(self) -> bytes:
        if self._peek().kind != "string":
            raise self._error("a text in quotes was expected")
        data = b""
        while self._peek().kind == "string":
            data += unquoted(self._take().text)
        return data

    def _number(self, smallest: int, largest: int) -> int:
        sign = -1 if smallest < 0 and self._found("-") else 1
        token = self._take()
        value = sign * self._integer(token)
        if not smallest <= value <= largest:
            raise self._error(f"the number is not from {smallest} to {largest}", token)
        return value

    def _integer(self, token: Token) -> int:
        text = token.text.lower()
        try:
            if text.startswith("0x"):
                return int(text, 16)
            is_octal = len(text) > 1 and text.startswith("0")
            return int(text, 8 if is_octal else 10)
        except ValueError:
            raise self._error("a whole number was expected", token) from None

    def _name(self) -> str:
        token = self._take()
        if token.kind != "name":
            raise self._error("a name was expected", token)
        return token.text

    def _full_name(self) -> str:
        name = "." if self._found(".") else ""
        name += self._name()
        while self._found("."):
            name += "." + self._name()
        return name

    def _skip_to(self, sign: str) -> None:
        """Pass over everything up to and with `sign`, brackets with all that is in them."""
        self._skip_value((sign,))
        self._expect(sign)

    def _skip_value(self, ends: tuple[str, ...]) -> None:
        while self._peek().text not in ends or self._peek().kind == "string":
            token = self._take()
            if token.kind == "sign" and token.text in _CLOSING:
                self._skip_block(_CLOSING[token.text])
            elif token.kind == "end":
                raise self._error("the text is cut off", token)

    def _skip_block(self, closing: str) -> None:
        open_brackets = [closing]
        while open_brackets:
            token = self._take()
            if token.kind == "end":
                raise self._error("the text is cut off", token)
            if token.kind == "sign" and token.text in _CLOSING:
                open_brackets.append(_CLOSING[token.text])
            elif token.kind == "sign" and token.text == open_brackets[-1]:
                open_brackets.pop()

    def _peek(self) -> Token:
        return self._tokens[self._next]

    def _take(self) -> Token:
        token = self._tokens[self._next]
        if token.kind != "end":
            self._next += 1
        return token

    def _found(self, text: str) -> bool:
        token = self._peek()
        if token.text != text or token.kind == "string":
            return False
        self._next += token.kind != "end"
        return True

    def _expect(self, text: str) -> None:
        if not self._found(text):
            raise self._error(f"`{text}` was expected")

    def _count(self) -> None:
        self._statements += 1
        if self._statements > NODES_MAX:
            raise self._error(f"there are more than {NODES_MAX} statements")

    def _error(self, reason: str, token: Token | None = None) -> BadSchemaError:
        at = token or self._peek()
        found = f"at {shortened(at.text)!r}" if at.text else "at the end"
        return BadSchemaError(f"line {at.line}, {found}: {reason}")


_CLOSING = {"{": "}", "(": ")", "[": "]", "<": ">"}


def _free_name(field_name: str, taken: set[str]) -> str:
    name = field_name if field_name.startswith("_") else f"_{field_name}"
    while name in taken:
        name = f"X{name}"
    taken.add(name)
    return name
