//! `#[derive(Checkpoint)]`, which the crate `bivouac` re-exports.
#![forbid(unsafe_code)]

use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use syn::spanned::Spanned;
use syn::{Attribute, Data, DeriveInput, Error, Field, Fields, Ident, LitStr, Result};

/// Implements `bivouac::Checkpoint` for a structure with named fields. The crate `bivouac`, where the examples are compiled, documents this
/// macro.
#[proc_macro_derive(Checkpoint, attributes(checkpoint))]
pub fn checkpoint(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let input = syn::parse_macro_input!(input as DeriveInput);
    implementation(&input).unwrap_or_else(|error| error.to_compile_error()).into()
}

fn implementation(input: &DeriveInput) -> Result<TokenStream> {
    let Data::Struct(data) = &input.data else {
        return Err(Error::new(
            input.span(),
            "Checkpoint can only be derived for structures: implement the trait yourself",
        ));
    };
    let Fields::Named(fields) = &data.fields else {
        return Err(Error::new(
            input.span(),
            "Checkpoint can only be derived for named fields, whose names become those of regions",
        ));
    };
    let parts = fields.named.iter().map(Part::of).collect::<Result<Vec<_>>>()?;
    let decompositions: Vec<&Ident> = parts.iter().filter_map(|part| part.kind.decomposition()).collect();
    for on in &decompositions {
        let found = parts.iter().find(|part| part.field == **on);
        match found.map(|part| &part.kind) {
            Some(Kind::Skip) => {}
            Some(_) => {
                return Err(Error::new(on.span(), format!("`{on}` is a decomposition: mark it `#[checkpoint(skip)]`")));
            }
            None => return Err(Error::new(on.span(), format!("`{on}` is not a field of this structure"))),
        }
    }
    let bound = parts.iter().filter(|part| !part.is_unused(&decompositions)).map(|part| {
        let (field, local) = (&part.field, part.local());
        quote!(#field: #local)
    });
    let calls = parts.iter().filter_map(Part::call);
    let name = &input.ident;
    let (generics, arguments, clause) = input.generics.split_for_impl();
    Ok(quote! {
        #[automatically_derived]
        impl #generics ::bivouac::Checkpoint for #name #arguments #clause {
            fn describe<'__a>(&'__a mut self, __parts: &mut ::bivouac::Protected<'__a>) {
                let Self { #(#bound,)* .. } = self;
                #(#calls)*
            }
        }
    })
}

/// A field, and its treatment.
struct Part {
    field: Ident,
    name: String,
    kind: Kind,
}

enum Kind {
    Plain,
    Skip,
    Value,
    Shared,
    PerRank(Ident),
    On(Ident),
    State,
}

impl Kind {
    fn decomposition(&self) -> Option<&Ident> {
        match self {
            Kind::On(field) => Some(field),
            _ => None,
        }
    }
}

impl Part {
    fn of(field: &Field) -> Result<Part> {
        let ident = field.ident.clone().ok_or_else(|| Error::new(field.span(), "a field without a name"))?;
        // A raw identifier is the name without its mark.
        let mut part =
            Part { name: ident.to_string().trim_start_matches("r#").to_owned(), field: ident, kind: Kind::Plain };
        for attribute in field.attrs.iter().filter(|attribute| attribute.path().is_ident("checkpoint")) {
            part.read(attribute)?;
        }
        Ok(part)
    }

    fn read(&mut self, attribute: &Attribute) -> Result<()> {
        attribute.parse_nested_meta(|meta| {
            let word = meta.path.get_ident().map(Ident::to_string).unwrap_or_default();
            let kind = match word.as_str() {
                "name" => {
                    self.name = meta.value()?.parse::<LitStr>()?.value();
                    return Ok(());
                }
                "skip" => Kind::Skip,
                "value" => Kind::Value,
                "shared" => Kind::Shared,
                "state" => Kind::State,
                "on" => Kind::On(meta.value()?.parse()?),
                "per_rank" => {
                    let rule: Ident = meta.value()?.parse()?;
                    let variant = match rule.to_string().as_str() {
                        "drop" => "Drop",
                        "ask" => "Ask",
                        "refuse" => "Refuse",
                        _ => return Err(Error::new(rule.span(), "per_rank must be `drop`, `ask` or `refuse`")),
                    };
                    Kind::PerRank(format_ident!("{variant}"))
                }
                _ => return Err(meta.error("use skip, name, value, shared, per_rank, on or state")),
            };
            if !matches!(self.kind, Kind::Plain) {
                return Err(meta.error("the field has more than one of skip, value, shared, per_rank, on and state"));
            }
            self.kind = kind;
            Ok(())
        })
    }

    /// The variable that its field is bound to.
    fn local(&self) -> Ident {
        format_ident!("__{}", self.field)
    }

    fn is_unused(&self, decompositions: &[&Ident]) -> bool {
        matches!(self.kind, Kind::Skip) && !decompositions.contains(&&self.field)
    }

    fn call(&self) -> Option<TokenStream> {
        let (name, local) = (&self.name, self.local());
        Some(match &self.kind {
            Kind::Skip => return None,
            Kind::Plain => quote!(__parts.protect(#name, #local);),
            Kind::Value => quote!(__parts.protect_value(#name, #local);),
            Kind::Shared => quote!(__parts.protect_shared(#name, #local);),
            Kind::PerRank(rule) => quote!(__parts.protect_per_rank(#name, #local, ::bivouac::OnResize::#rule);),
            Kind::On(on) => {
                let on = format_ident!("__{}", on);
                quote!(__parts.protect_on(#name, &*#on, #local);)
            }
            Kind::State => quote!(__parts.protect_state(#name, #local);),
        })
    }
}
